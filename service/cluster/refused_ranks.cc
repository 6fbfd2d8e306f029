#include "service/cluster/refused_ranks.h"

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"
#include "service/session/fair_drop.h"

namespace headrace::service {

void RefusedRanks::Note(Refusal refusal, TimeNs now) {
  Forget(refusal.job, refusal.uid, refusal.node);
  if (refusals_.size() == kMax) {
    refusals_.erase(
        OldestOfGreediest(refusals_, [](const Timed& each) { return each.refusal.uid; }));
  }
  refusals_.push_back({.refusal = std::move(refusal), .at_ns = now});
  HR_CHECK(refusals_.size() <= kMax, refusals_.size());
}

const RefusedRanks::Refusal* RefusedRanks::Find(std::string_view job, std::uint32_t uid,
                                                TimeNs now) const {
  const auto found = std::find_if(refusals_.rbegin(), refusals_.rend(), [&](const Timed& each) {
    return each.refusal.job == job && each.refusal.uid == uid && now - each.at_ns <= kKept;
  });
  return found == refusals_.rend() ? nullptr : &found->refusal;
}

void RefusedRanks::Forget(std::string_view job, std::uint32_t uid, std::string_view node) {
  std::erase_if(refusals_, [&](const Timed& each) {
    return each.refusal.job == job && each.refusal.uid == uid && each.refusal.node == node;
  });
}

}  // namespace headrace::service
