// Ranks that the service of a node has refused before their job was known to the leader. Nodes that
// join the job later are sent the refusal at once, and not only that the rank is missing. Used by
// the thread of its owner. Pure: no clock, no network, no log.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "ipc/base/clock.h"

namespace headrace::service {

class RefusedRanks {
 public:
  // Limit. Beyond it the oldest of the user with the most is dropped.
  static constexpr std::size_t kMax = 16;
  static constexpr TimeNs kKept = 60 * kSecond;

  struct Refusal {
    std::string job;
    std::uint32_t uid = 0;  // owner of the job
    std::string node;
    std::string cause;  // a text that names rank and node
  };

  void Note(Refusal refusal, TimeNs now);
  // The newest refusal of that job; null if there is none or all are older than kKept.
  const Refusal* Find(std::string_view job, std::uint32_t uid, TimeNs now) const;
  // A rank of that node has joined the job.
  void Forget(std::string_view job, std::uint32_t uid, std::string_view node);

 private:
  struct Timed {
    Refusal refusal;
    TimeNs at_ns = 0;
  };
  std::deque<Timed> refusals_;  // oldest first
};

}  // namespace headrace::service
