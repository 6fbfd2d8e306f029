// The requests that a user may make for a running job, as the CLI and the service number them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace headrace {

// Everything but cancel takes effect where the job's next iteration begins (of a job without
// layout: with its next operation).
enum class SteeringKind : std::uint8_t {
  kPause = 1,     // nothing of the job begins any more; deadlines stand still
  kResume = 2,    // ends a pause
  kDrain = 3,     // the job ends, with a named cause, once what is posted has ended
  kCancel = 4,    // the job ends now
  kWeight = 5,    // value: share of a lane among jobs of its priority, 1 to kWeightMax
  kPriority = 6,  // value: class, 0 to kPriorityMax; larger goes first
  kLimit = 7,     // value: bytes a second on each lane; 0: none
  kSends = 8,     // value: a SendsClass, of the job's sends and receives
  kCompress = 9,  // value: SteeringValue of a codec, in which its gradients cross between nodes
  // Between services only: how far a node of a job that is drained has come, whose ranks have
  // posted that operation and gradients of that iteration.
  kDrainOperations = 10,
  kDrainIterations = 11,
  // Between services only, about ranks that are slow (service/session/slow_rank.h).
  kSlowBound = 12,   // value: SlowBound, as rank 0 said when it attached
  kOwnShare = 13,    // value: OwnShare, to the node of rank 0
  kSlowRank = 14,    // value: SlowRank, from the node of rank 0
  kApplicants = 15,  // between services only, from the leader; value: WaitingApplicants
  kRankState = 16,   // about slow ranks, too; value: RankState, to the node of rank 0
  kEvict = 20,       // value: a rank, which the job loses at once as if its process were gone
};
constexpr bool IsAboutSlowRanks(SteeringKind kind) {
  return (kind >= SteeringKind::kSlowBound && kind <= SteeringKind::kSlowRank) ||
         kind == SteeringKind::kRankState;
}
inline constexpr int kSteeringKindsCount = 9;  // that people may ask for, beside kEvict

// When sends and receives of a job go, beside its other operations and the blocks of its plan.
enum class SendsClass : std::uint8_t {
  kSame = 0,   // in turn: what has waited longer goes first
  kAbove = 1,  // before them
};
inline constexpr std::uint64_t kSendsClassMax = 1;
inline constexpr std::array<std::string_view, kSendsClassMax + 1> kSendsClassNames = {"same",
                                                                                      "above"};
constexpr std::optional<SendsClass> SendsClassOf(std::string_view name) {
  for (std::uint8_t i = 0; i <= kSendsClassMax; ++i) {
    if (kSendsClassNames[i] == name) return SendsClass{i};
  }
  return std::nullopt;
}

inline constexpr std::uint64_t kWeightMax = 1000;
inline constexpr std::uint64_t kPriorityMax = 15;
// Less would never let a block through before operations time out.
inline constexpr std::uint64_t kLimitMin = 1000;
// No wire is faster, and reckoning with more could overflow.
inline constexpr std::uint64_t kLimitMax = 1'000'000'000'000;
// A rank that is slow for longer than any bound was so for a day.
inline constexpr std::uint32_t kSlowBoundMaxS = 86'400;

}  // namespace headrace
