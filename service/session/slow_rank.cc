#include "service/session/slow_rank.h"

#include <fmt/format.h>

#include "transport/transport.h"

namespace headrace::service {

Status CheckSlowBound(const SlowBound& bound) {
  if (bound.seconds > kSlowBoundMaxS) {
    return Error(Code::kInvalidArgument,
                 fmt::format("slow for {} s: 1 to {} s are possible, and 0 for no bound",
                             bound.seconds, kSlowBoundMaxS));
  }
  if (bound.least_world > transport::kMembersMax) {
    return Error(Code::kInvalidArgument,
                 fmt::format("evictions down to {} ranks: a job has 1 to {}; 0: nobody is evicted",
                             bound.least_world, transport::kMembersMax));
  }
  if (bound.least_world != 0 && bound.seconds == 0) {
    return Error(Code::kInvalidArgument,
                 "evictions of slow ranks without a bound: say for how many seconds a rank is slow "
                 "before it is evicted, 1 or more");
  }
  return {};
}

Status CheckSlowSteering(SteeringKind kind, std::uint64_t value) {
  if (kind == SteeringKind::kSlowBound) return CheckSlowBound(SlowBound::Of(value));
  bool possible = false;
  if (kind == SteeringKind::kOwnShare) {
    const OwnShare own = OwnShare::Of(value);
    possible = own.rank < transport::kMembersMax && own.share <= OwnShare::kWhole;
  } else if (kind == SteeringKind::kRankState) {
    const RankState state = RankState::Of(value);
    possible = state.rank < transport::kMembersMax && state.kind <= RankState::Kind::kStalled &&
               state.Value() == value && state.seconds <= 2 * kSlowBoundMaxS;
  } else {
    const SlowRank slow = SlowRank::Of(value);
    const bool named = slow.percent != 0;
    possible = slow.rank < transport::kMembersMax && slow.percent <= SlowRank::kPercentMax &&
               slow.Value() == value && (named || (!slow.evicted && !slow.stalled));
  }
  if (possible) return {};
  return Error(Code::kInvalidArgument,
               fmt::format("a slow rank's value {:#x} that no service says", value));
}

}  // namespace headrace::service
