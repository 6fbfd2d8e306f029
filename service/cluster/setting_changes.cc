#include "service/cluster/setting_changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"
#include "ipc/base/foreign_text.h"
#include "service/session/quorum.h"
#include "service/session/slow_rank.h"
#include "transport/transport.h"

namespace headrace::service {
namespace {

constexpr std::size_t kNameShownMax = 64;
// Each kind once, the most there are: those that people ask for, kEvict, and between services two
// of drains and three of slow ranks.
constexpr std::size_t kKeptMax = kSteeringKindsCount + 6;

Error Wrong(std::string text) { return Error(Code::kInvalidArgument, std::move(text)); }

const char* NameOf(SteeringKind kind) {
  switch (kind) {
    case SteeringKind::kPause:
      return "pause";
    case SteeringKind::kResume:
      return "resume";
    case SteeringKind::kDrain:
      return "drain";
    case SteeringKind::kCancel:
      return "cancel";
    case SteeringKind::kWeight:
      return "weight";
    case SteeringKind::kPriority:
      return "priority";
    case SteeringKind::kLimit:
      return "limit";
    case SteeringKind::kSends:
      return "class of sends";
    case SteeringKind::kCompress:
      return "compression";
    case SteeringKind::kDrainOperations:
      return "operations until a drain";
    case SteeringKind::kDrainIterations:
      return "iterations until a drain";
    case SteeringKind::kSlowBound:
      return "bound of slow ranks";
    case SteeringKind::kOwnShare:
      return "own share of a rank";
    case SteeringKind::kSlowRank:
      return "slow rank";
    case SteeringKind::kRankState:
      return "state of a rank";
    case SteeringKind::kApplicants:
      return "waiting applicants";
    case SteeringKind::kEvict:
      return "evict rank";
  }
  return "unknown";
}

}  // namespace

Result<std::optional<plan::Policy>> ReadPolicyName(std::string_view name) {
  if (name.empty()) return std::optional<plan::Policy>();
  if (const std::optional<plan::Policy> policy = plan::PolicyNamed(name)) return policy;
  std::vector<std::string_view> known;
  for (const plan::Policy policy : plan::kPolicies) known.push_back(plan::Name(policy));
  return Error(Code::kInvalidArgument,
               fmt::format("policy \"{}\" is not one of {}", Printable(name, kNameShownMax),
                           fmt::join(known, ", ")));
}

Result<CodecChoice> ReadCodecNames(std::string_view name) {
  if (name.empty()) return CodecChoice();
  if (const std::optional<CodecChoice> choice = ChoiceNamed(name)) return *choice;
  return Error(Code::kInvalidArgument, fmt::format("codec \"{}\" is not one of {}",
                                                   Printable(name, kNameShownMax), KnownCodecs()));
}

Status CheckSteering(std::uint8_t kind, std::uint64_t value) {
  const bool evicts = kind == static_cast<std::uint8_t>(SteeringKind::kEvict);
  if (kind == 0 || (kind > kSteeringKindsCount && !evicts)) {
    return Wrong(
        fmt::format("steering of kind {}: 1 to {} and {} are known; ask with the headracectl of "
                    "the service's own release",
                    kind, kSteeringKindsCount, static_cast<int>(SteeringKind::kEvict)));
  }
  switch (static_cast<SteeringKind>(kind)) {
    case SteeringKind::kWeight:
      if (value >= 1 && value <= kWeightMax) return {};
      return Wrong(
          fmt::format("a weight of {}: 1 to {} are possible; to stop the job ask for a "
                      "pause",
                      value, kWeightMax));
    case SteeringKind::kPriority:
      if (value <= kPriorityMax) return {};
      return Wrong(fmt::format("a priority of {}: 0 to {} are possible, and larger goes first",
                               value, kPriorityMax));
    case SteeringKind::kLimit:
      if (value == 0 || (value >= kLimitMin && value <= kLimitMax)) return {};
      return Wrong(
          fmt::format("a limit of {} bytes/s: {} to {} are possible, and 0 for none; to "
                      "stop the job ask for a pause",
                      value, kLimitMin, kLimitMax));
    case SteeringKind::kSends:
      if (value <= kSendsClassMax) return {};
      return Wrong(
          fmt::format("a class of sends {}: 0 (in turn with other blocks) and 1 (before "
                      "them) are possible",
                      value));
    case SteeringKind::kEvict:
      if (value < transport::kMembersMax) return {};
      return Wrong(fmt::format("rank {} to be evicted: ranks go from 0 to {}", value,
                               transport::kMembersMax - 1));
    case SteeringKind::kCompress:
      if (ChoiceOfValue(value)) return {};
      return Wrong(fmt::format("no codec has the number {} (known: {})", value, KnownCodecs()));
    default:
      if (value == 0) return {};
      return Wrong(fmt::format("{} with the value {}: it takes none",
                               NameOf(static_cast<SteeringKind>(kind)), value));
  }
}

Status CheckNodeSteering(std::uint8_t kind, std::uint64_t value) {
  const bool progress = kind == static_cast<std::uint8_t>(SteeringKind::kDrainOperations) ||
                        kind == static_cast<std::uint8_t>(SteeringKind::kDrainIterations);
  const bool drain = kind == static_cast<std::uint8_t>(SteeringKind::kDrain);
  if (progress || (drain && value == kDrainToMoveOver)) return {};
  if (IsAboutSlowRanks(SteeringKind{kind})) return CheckSlowSteering(SteeringKind{kind}, value);
  if (SteeringKind{kind} == SteeringKind::kApplicants) {
    const WaitingApplicants waiting = WaitingApplicants::Of(value);
    constexpr std::uint32_t kMax = WaitingApplicants::kCountMax;
    if (waiting.joiners <= kMax && waiting.spares <= kMax) return {};
    return Wrong(fmt::format("{} joiners and {} spares of one job: 0 to {} are possible",
                             waiting.joiners, waiting.spares, kMax));
  }
  return CheckSteering(kind, value);
}

Status CheckUnderAdaptive(std::string_view job, const CodecChoice& choice) {
  std::vector<Codec> codecs = choice.allowed.List();
  codecs.push_back(choice.codec);
  const bool diverges = std::ranges::any_of(codecs, [](const Codec& codec) {
    return codec.kind == Codec::kSign || codec.kind == Codec::kTopK ||
           codec.kind == Codec::kRandomK;
  });
  if (!diverges) return {};
  return Wrong(
      fmt::format("codec {} is known to diverge under Adam and its like, by one of which job {} "
                  "trains: ask for int8, int4 or bf16, or with --force",
                  ChoiceName(choice), job));
}

std::string DescribeSteering(const Steering& steering) {
  const char* name = NameOf(steering.kind);
  if (steering.kind == SteeringKind::kLimit) {
    return steering.value == 0 ? "no limit" : fmt::format("limit {} bytes/s", steering.value);
  }
  if (steering.kind == SteeringKind::kSends) {
    return steering.value == 0 ? "sends in turn with other blocks" : "sends before other blocks";
  }
  if (steering.kind == SteeringKind::kCompress) {
    return fmt::format("gradients as {}",
                       ChoiceName(ChoiceOfValue(steering.value).value_or(CodecChoice())));
  }
  if (steering.kind == SteeringKind::kWeight || steering.kind == SteeringKind::kPriority ||
      steering.kind == SteeringKind::kEvict) {
    return fmt::format("{} {}", name, steering.value);
  }
  return name;
}

std::string DescribeAsker(const Steering& steering) {
  if (steering.node.empty()) return fmt::format("uid {}", steering.uid);
  return fmt::format("uid {} on node {}", steering.uid, steering.node);
}

std::string DescribeEnd(const Steering& steering) {
  if (MovesOver(steering)) {
    return fmt::format("closed to continue later: the service{} is stopping, as {} asked",
                       steering.node.empty() ? "" : " on node " + steering.node,
                       fmt::format("uid {}", steering.uid));
  }
  return fmt::format("{} by {}", steering.kind == SteeringKind::kDrain ? "drained" : "cancelled",
                     DescribeAsker(steering));
}

void PendingSteering::Keep(Steering steering) {
  std::erase_if(kept_, [&](const Steering& each) { return each.kind == steering.kind; });
  kept_.push_back(std::move(steering));
  HR_CHECK(kept_.size() <= kKeptMax, kept_.size());
}

const Steering* PendingSteering::Find(SteeringKind kind) const {
  const auto found = std::find_if(kept_.begin(), kept_.end(),
                                  [kind](const Steering& each) { return each.kind == kind; });
  return found == kept_.end() ? nullptr : &*found;
}

std::vector<Steering> PendingSteering::PopAll() { return std::exchange(kept_, {}); }

}  // namespace headrace::service
