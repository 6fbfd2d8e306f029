// Ranks that a node's service refused while nobody waited for them. Who comes to their job later is
// sent the refusal at once, and not only that the rank is missing. Pure: no clock, no network,
// no log.
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
  static constexpr std::size_t kMax = 16;  // beyond that the oldest are forgotten
  static constexpr TimeNs kKept = 60 * kSecond;

  struct Refusal {
    std::string job;
    std::uint32_t uid = 0;  // the job's
    std::string node;
    std::string cause;  // names rank and node
  };

  void Note(Refusal refusal, TimeNs now);
  // The newest one of that job; nullptr: there is none that is not older than kKept.
  const Refusal* Find(std::string_view job, std::uint32_t uid, TimeNs now) const;
  // The job goes on with a rank of that node.
  void Forget(std::string_view job, std::uint32_t uid, std::string_view node);

 private:
  struct Timed {
    Refusal refusal;
    TimeNs at_ns = 0;
  };
  std::deque<Timed> refusals_;  // the newest last
};

}  // namespace headrace::service
