#include "service/dispatch/observe/wait_reports.h"

#include <fmt/format.h>

#include <bit>
#include <optional>
#include <string_view>
#include <vector>

namespace headrace::service {
namespace {

// Names of this many ranks or nodes stand in a text; of the others only the count.
constexpr std::size_t kNamedMax = 4;

std::string Listed(const std::vector<std::string>& names) {
  const std::size_t named = std::min(names.size(), kNamedMax);
  std::string text = fmt::format(
      "{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(named), ", "));
  if (names.size() > named) text += fmt::format(" and {} more", names.size() - named);
  return text;
}

std::vector<std::string> Described(const Job& job, RankMask ranks) {
  std::vector<std::string> names;
  for (; ranks != 0; ranks &= ranks - 1) {
    names.push_back(job.DescribeRank(static_cast<std::uint32_t>(std::countr_zero(ranks))));
  }
  return names;
}

RankMask AllRanks(const Job& job) { return job.WantedOf(Posts{}); }

std::string Waiting(const Job& job, RankMask posted) {
  const int count = std::popcount(posted);
  if (count == 0) return {};
  return fmt::format("; {} rank{}{} wait{} for it", count, count == 1 ? "" : "s",
                     job.nodes() != nullptr ? " of this node" : "", count == 1 ? "s" : "");
}

// All have posted the subject, and some of their GPUs have not come so far.
WaitReport NotReady(const Job& job, std::string subject, const Posts& posts, TimeNs waited_ns) {
  const bool one = std::popcount(posts.awaited) == 1;
  WaitReport report{.subject = std::move(subject), .text = {}, .to_others = {}};
  const auto say = [&](std::string_view where, std::string_view waiting) {
    return fmt::format("{} on {} {} not ready: {} not reached {} for {}{}",
                       Listed(Described(job, posts.awaited)), where, one ? "is" : "are",
                       one ? "its GPU has" : "their GPUs have", report.subject,
                       FormatSeconds(waited_ns), waiting);
  };
  report.text = say("this node", Waiting(job, posts.ready()));
  if (job.nodes() != nullptr) {
    report.to_others = say("node " + job.nodes()->nodes[job.nodes()->self].name, "");
  }
  return report;
}

// Who has not posted the subject. Whoever is attached and has not says more than who never came.
WaitReport NotPosted(const Job& job, std::string subject, const Posts& posts, TimeNs waited_ns) {
  if (job.FirstAwaited(posts)) return NotReady(job, std::move(subject), posts, waited_ns);
  const RankMask missing = AllRanks(job) & ~posts.ranks;
  const RankMask here = missing & job.attached_ranks();
  WaitReport report{.subject = std::move(subject), .text = {}, .to_others = {}};
  if (here == 0) {
    const std::string who = Listed(Described(job, missing));
    report.text = fmt::format("{} waits for {}, which {} not attached, for {}{}", report.subject,
                              who, std::popcount(missing) == 1 ? "is" : "are",
                              FormatSeconds(waited_ns), Waiting(job, posts.ranks));
    return report;
  }
  const auto say = [&](std::string_view where, std::string_view waiting) {
    return fmt::format("{} on {} {} not posted {} for {}{}", Listed(Described(job, here)), where,
                       std::popcount(here) == 1 ? "has" : "have", report.subject,
                       FormatSeconds(waited_ns), waiting);
  };
  report.text = say("this node", Waiting(job, posts.ranks));
  if (job.nodes() != nullptr) {
    report.to_others = say("node " + job.nodes()->nodes[job.nodes()->self].name, "");
  }
  return report;
}

WaitReport NotMet(const Job& job, std::string subject, TimeNs waited_ns) {
  std::string text = fmt::format("{} waits for the job's nodes for {}: {}", subject,
                                 FormatSeconds(waited_ns), job.waits_for);
  return {.subject = std::move(subject), .text = std::move(text), .to_others = {}};
}

// "node c (rank 2), node d": a node's only rank is named with it.
std::string Peers(const Job& job, std::uint64_t members) {
  std::vector<std::string> names;
  for (; members != 0; members &= members - 1) {
    const auto place = static_cast<std::size_t>(std::countr_zero(members));
    if (place >= job.nodes()->nodes.size()) break;
    const JobNode& node = job.nodes()->nodes[place];
    const bool alone = node.ranks.size() == 1;
    names.push_back(alone ? fmt::format("node {} (rank {})", node.name, node.ranks.front())
                          : "node " + node.name);
  }
  return Listed(names);
}

// What a pair waits for: "rank 1 (pid 12) has not posted its receive", "nobody has sent".
std::string OtherSide(const Job& job, const Operation& operation) {
  if (operation.spec.source == ipc::kAnyRank) return "no rank has posted a send to it";
  const Pair& pair = job.pairs().at(operation.spec.sequence);
  if (!pair.waits() && pair.away == Away::kComes && !pair.send_ready) {
    return fmt::format("the GPU of {} has not reached its send",
                       job.DescribeRank(operation.spec.source));
  }
  const bool sent = operation.spec.kind == ipc::kSend;
  const std::uint32_t missing = sent ? operation.spec.target : operation.spec.source;
  const bool absent = job.IsHere(missing) && job.ranks()[missing].session == nullptr;
  return fmt::format("{} has not posted its {}{}", job.DescribeRank(missing),
                     sent ? "receive" : "send", absent ? " and is not attached" : "");
}

WaitReport ReportPairWait(const Job& job, const Operation& operation, TimeNs waited_ns) {
  WaitReport report{.subject = job.DescribeOperation(operation), .text = {}, .to_others = {}};
  report.text = fmt::format("{} waits for {}: {}", report.subject, FormatSeconds(waited_ns),
                            OtherSide(job, operation));
  return report;
}

std::string_view StageText(BlockStage stage) {
  switch (stage) {
    case BlockStage::kInNode:
      return "in the node";
    case BlockStage::kBetweenNodes:
      return "between nodes";
    case BlockStage::kToRanks:
      return "to the node's ranks";
    case BlockStage::kVerify:
      return "comparing results";
    case BlockStage::kDone:
      break;
  }
  return "done";
}

std::string WhyItQueues(const Operation& operation) {
  switch (operation.reason) {
    case ipc::WaitReason::kNoCredit:
      return "no credit";
    case ipc::WaitReason::kInFlight:
      return operation.planned()
                 ? fmt::format("the plan moves {} at a time", operation.reason_argument)
                 : fmt::format("{} of its stages are on the lane", operation.reason_argument);
    case ipc::WaitReason::kLaneFull:
      return "the lane has as many stages as it takes";
    case ipc::WaitReason::kNoRoom:
      return "the job has as many blocks under way as it may";
    case ipc::WaitReason::kBehindBlock:
      // A plan's blocks have numbers of their own inside, which nobody else knows.
      if (operation.paired())
        return fmt::format("behind pair {}", PairNumber(operation.reason_argument));
      return (operation.reason_argument & kPlannedSequence) != 0
                 ? "behind another block of the plan"
                 : fmt::format("behind block {}", operation.reason_argument);
    case ipc::WaitReason::kBehindJob:
      return fmt::format("behind job #{}", operation.reason_argument);
    default:
      return "others go first";
  }
}

// Why the gradients of the iteration under way do not end: what of them is on a lane, or who has
// not posted the first that is missing.
std::string WhyIterationWaits(const Job& job, const Lanes& lanes) {
  Gradients& gradients = *job.gradients;
  if (gradients.Head() == nullptr) return WhyNoPlan(job);
  for (const Operation& operation : gradients.operations()) {
    if (!operation.open()) continue;
    return fmt::format("{} is on lane {}", job.DescribeOperation(operation),
                       lanes.Name(lanes.WaitedFor(job, operation)));
  }
  const std::optional<std::uint32_t> missing = gradients.Missing(job.local_ranks());
  if (!missing) {
    return fmt::format(
        "iteration {} has not gone on, though all ranks of this node have posted the "
        "next block's gradients",
        gradients.head_iteration());
  }
  return fmt::format("{} {}", job.DescribeMissing(gradients.posts(*missing)),
                     job.DescribeGradient(*missing));
}

}  // namespace

std::string FormatSeconds(TimeNs time_ns) {
  return fmt::format("{:.1f} s", static_cast<double>(time_ns) / kSecond);
}

WaitReport ReportOperationWait(const Job& job, const Operation& operation, TimeNs waited_ns) {
  if (operation.paired() && !job.FirstAwaited(operation.posts)) {
    return ReportPairWait(job, operation, waited_ns);
  }
  std::string subject = job.DescribeOperation(operation);
  // All that are here have posted it, and who else belongs to it is not known.
  const bool not_met = !job.formed() && (job.attached_ranks() & ~operation.posts.ranks) == 0;
  if (not_met && !job.waits_for.empty()) return NotMet(job, std::move(subject), waited_ns);
  return NotPosted(job, std::move(subject), operation.posts, waited_ns);
}

WaitReport ReportMoveWait(const Job& job, const Operation& operation, const Lanes& lanes,
                          TimeNs waited_ns) {
  WaitReport report{.subject = job.DescribeOperation(operation), .text = {}, .to_others = {}};
  const std::string waited = FormatSeconds(waited_ns);
  if (operation.state == Operation::State::kWaiting) {
    report.text = fmt::format("{} waits for its turn on lane {} ({}) for {}: {}", report.subject,
                              lanes.Name(operation.lane), StageText(operation.stage), waited,
                              WhyItQueues(operation));
  } else if (operation.reason == ipc::WaitReason::kPeer && job.nodes() != nullptr) {
    report.text =
        fmt::format("{} waits for {} on lane {} for {}", report.subject,
                    Peers(job, operation.reason_argument), lanes.Name(operation.lane), waited);
  } else {
    report.text = fmt::format("{} is on lane {} ({}) for {} and waits for no other node",
                              report.subject, lanes.Name(lanes.WaitedFor(job, operation)),
                              StageText(operation.stage), waited);
  }
  return report;
}

WaitReport ReportHeadWait(const Job& job, TimeNs waited_ns) {
  Gradients& gradients = *job.gradients;
  if (job.formed() && gradients.Head() != nullptr) {
    const std::uint32_t missing = gradients.Missing(job.local_ranks()).value_or(0);
    return NotPosted(job, job.DescribeGradient(missing), gradients.posts(missing), waited_ns);
  }
  // The one that was posted first.
  std::optional<std::uint32_t> first;
  for (std::uint32_t tensor = 0; tensor < gradients.count(); ++tensor) {
    if (gradients.posts(tensor).ranks == 0) continue;
    if (!first || gradients.posts(tensor).opened_ns < gradients.posts(*first).opened_ns)
      first = tensor;
  }
  std::string subject = job.DescribeGradient(first.value_or(0));
  if (!job.formed() && !job.waits_for.empty()) return NotMet(job, std::move(subject), waited_ns);
  const std::string why =
      gradients.plan() == nullptr
          ? WhyNoPlan(job)
          : fmt::format("not all nodes have taken the plan that begins with iteration {}",
                        gradients.head_iteration());
  std::string text = fmt::format("{} waits for {}: {}", subject, FormatSeconds(waited_ns), why);
  return {.subject = std::move(subject), .text = std::move(text), .to_others = {}};
}

std::string WhyNoPlan(const Job& job) {
  RankMask without = 0;
  RankMask absent = 0;
  for (RankMask left = AllRanks(job); left != 0; left &= left - 1) {
    const auto rank = static_cast<std::uint32_t>(std::countr_zero(left));
    const Session* const session = job.ranks()[rank].session.get();
    if (session == nullptr) absent |= RankMask{1} << rank;
    if (session != nullptr && session->gradients() == nullptr) without |= RankMask{1} << rank;
  }
  const auto say = [&job](RankMask ranks, std::string_view what) {
    return fmt::format("the job has no plan, since {} {} not {}", Listed(Described(job, ranks)),
                       std::popcount(ranks) == 1 ? "has" : "have", what);
  };
  if (without != 0) return say(without, "handed in a layout");
  if (absent != 0) return say(absent, "attached");
  if (job.nodes() == nullptr) return "the job's plan is being made";
  std::vector<std::string> others;
  for (std::size_t i = 0; i < job.nodes()->data_nodes_count(); ++i) {
    if (i != job.nodes()->self) others.push_back("node " + job.nodes()->nodes[i].name);
  }
  return fmt::format(
      "the job has no plan: all ranks of this node have handed in their layout, so one on {} has "
      "not, or the plan is being made",
      Listed(others));
}

Failure DescribeTimeout(const Job& job, const Operation& operation, const Lanes& lanes,
                        TimeNs now) {
  const std::string what = fmt::format("{} timed out after {} ms", job.DescribeOperation(operation),
                                       (now - operation.posts.opened_ns) / kMillisecond);
  if (!job.formed()) return {Code::kTimeout, fmt::format("{}: {}", what, job.waits_for)};
  if (operation.state != Operation::State::kGathering) {
    const bool waits = operation.reason == ipc::WaitReason::kPeer && job.nodes() != nullptr;
    return {Code::kTimeout,
            fmt::format("{} on lane {}{}", what, lanes.Name(lanes.WaitedFor(job, operation)),
                        waits ? ", waiting for " + Peers(job, operation.reason_argument) : "")};
  }
  if (operation.paired() && !job.FirstAwaited(operation.posts)) {
    return {Code::kTimeout, fmt::format("{}: {}", what, OtherSide(job, operation))};
  }
  const bool is_ready = operation.posts.ready() == job.local_ranks();
  if (is_ready && job.WaitsForEarlier(operation)) {
    const Operation& earlier = job.slot(operation.spec.sequence - 1);
    return {Code::kTimeout, fmt::format("{}: it goes after {}, which has not begun", what,
                                        job.DescribeOperation(earlier))};
  }
  if (is_ready && job.WaitsForIteration(operation.spec)) {
    return {Code::kTimeout, fmt::format("{}: {}", what, WhyIterationWaits(job, lanes))};
  }
  if (is_ready) {
    return {
        Code::kTimeout,
        fmt::format("{}: not all nodes of the job have said how far they are, so that it can be "
                    "drained",
                    what)};
  }
  if (job.FirstAwaited(operation.posts)) {
    return {Code::kTimeout, fmt::format("{}: {} it", what, job.DescribeMissing(operation.posts))};
  }
  const std::uint32_t missing = job.FirstMissing(operation.posts);
  return {Code::kTimeout, fmt::format("{}: {} has not posted it{}", what, job.DescribeRank(missing),
                                      job.ranks()[missing].session ? "" : " and is not attached")};
}

Failure DescribeHeld(const Job& job, const Operation& operation, TimeNs for_ns) {
  const Pair& pair = job.pairs().at(operation.spec.sequence);
  return {Code::kPeerLost,
          fmt::format("node {} still holds {} {} after it ended: {}",
                      job.nodes()->nodes[pair.node].name, job.DescribeOperation(operation),
                      FormatSeconds(for_ns), operation.failure->text)};
}

Failure DescribeUnreceived(const Job& job, const Operation& operation, TimeNs now) {
  return {Code::kTimeout,
          fmt::format("{} timed out after {} ms: {}", job.DescribeOperation(operation),
                      (now - operation.posts.opened_ns) / kMillisecond, OtherSide(job, operation))};
}

Failure DescribeTimeout(const Job& job, std::uint32_t tensor, const Lanes& lanes, TimeNs now) {
  const Gradients& gradients = *job.gradients;
  const std::string what = fmt::format("{} timed out after {} ms", job.DescribeGradient(tensor),
                                       (now - gradients.posts(tensor).opened_ns) / kMillisecond);
  if (!job.formed()) return Failure{Code::kTimeout, fmt::format("{}: {}", what, job.waits_for)};
  return Failure{Code::kTimeout, fmt::format("{}: {}", what, WhyIterationWaits(job, lanes))};
}

}  // namespace headrace::service
