// Jobs whose last epoch has lost a rank together with its process. Its other ranks cannot
// reconnect: a process that replaces the lost rank begins a job, and ranks that begin and ranks
// that reconnect are never in one job. Used by the thread of its owner. Pure: no clock, no network,
// no log.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "ipc/base/result.h"

namespace headrace::service {

class LostEpochs {
 public:
  // Limit. Beyond it the oldest of the user with the most is dropped; its ranks then wait until
  // their own timeout.
  static constexpr std::size_t kMax = 64;

  struct Loss {
    std::uint32_t epoch = 0;
    std::string cause;  // a text that names the rank
  };

  // A job is known by its name and its user, here and below.
  void Note(std::string_view job, std::uint32_t uid, Loss loss);
  // The job starts from the beginning.
  void Forget(std::string_view job, std::uint32_t uid);
  // Whether a rank that was in `after_epoch` of the job (0: in none) may reconnect. The error says
  // why not, and what to do. One that follows a decision on who is left (`decided`) has to ask
  // again: somebody was lost after it.
  Status Check(std::string_view job, std::uint32_t uid, std::uint32_t after_epoch,
               bool decided) const;

 private:
  struct Named {
    std::string job;
    std::uint32_t uid = 0;
    Loss loss;
  };
  std::deque<Named> losses_;  // oldest first
};

}  // namespace headrace::service
