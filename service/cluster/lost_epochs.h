// Jobs whose last epoch lost a rank with its process. The rest of its ranks would wait in vain to
// go on: a process that is started in the place of that rank begins, and ranks that begin and ranks
// that go on are never one job. Pure: no clock, no network, no log.
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
  // Beyond that the oldest are forgotten, whose ranks then wait as long as they may.
  static constexpr std::size_t kMax = 64;

  struct Loss {
    std::uint32_t uid = 0;
    std::uint32_t epoch = 0;
    std::string cause;  // names the rank
  };

  void Note(std::string_view job, Loss loss);
  // The job begins anew.
  void Forget(std::string_view job);
  // Whether a rank that was in `after_epoch` of the job (0: in none) may go on; else why not, and
  // what to do.
  Status Check(std::string_view job, std::uint32_t uid, std::uint32_t after_epoch) const;

 private:
  struct Named {
    std::string job;
    Loss loss;
  };
  std::deque<Named> losses_;  // the newest last
};

}  // namespace headrace::service
