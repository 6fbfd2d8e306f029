#include "service/dispatch/observe/wait_chain.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <vector>

namespace headrace::service {
namespace {

// A rank that waits in an operation for another rank of that job.
struct WaitLink {
  const Job* job = nullptr;
  const Operation* operation = nullptr;
  std::uint32_t rank = 0;
  std::uint32_t awaited = 0;
};

std::int32_t PidOf(const Job& job, std::uint32_t rank) {
  const Session* const session = job.ranks()[rank].session.get();
  return session == nullptr ? 0 : session->identity().pid;
}

// What those ranks posted first of what waits for another rank.
std::optional<WaitLink> OldestOf(const Job& job, RankMask ranks) {
  std::optional<WaitLink> oldest;
  job.ForEachOpen([&](const Operation& operation) {
    const RankMask posted = operation.posts.ranks & ranks;
    if (posted == 0) return;
    if (oldest && oldest->operation->posts.opened_ns <= operation.posts.opened_ns) return;
    const std::optional<std::uint32_t> awaited = AwaitedRank(job, operation);
    if (!awaited || (posted & ~Bit(*awaited)) == 0) return;
    const auto rank = static_cast<std::uint32_t>(std::countr_zero(posted & ~Bit(*awaited)));
    oldest = WaitLink{&job, &operation, rank, *awaited};
  });
  return oldest;
}

// The same of the process, which may be a rank of several jobs of its user. All that is open in
// them is looked at once.
std::optional<WaitLink> OldestOf(const Jobs& jobs, const Job& job, std::uint32_t rank) {
  std::optional<WaitLink> oldest = OldestOf(job, Bit(rank));
  const std::int32_t pid = PidOf(job, rank);
  if (pid == 0) return oldest;  // not attached, or of a namespace that is not seen from here
  for (const std::unique_ptr<Job>& other : jobs) {
    if (other.get() == &job || other->owner_uid() != job.owner_uid()) continue;
    RankMask ranks = 0;
    for (const std::uint32_t member : other->local()) {
      if (PidOf(*other, member) == pid) ranks |= Bit(member);
    }
    if (ranks == 0) continue;
    const std::optional<WaitLink> found = OldestOf(*other, ranks);
    if (found &&
        (!oldest || found->operation->posts.opened_ns < oldest->operation->posts.opened_ns)) {
      oldest = found;
    }
  }
  return oldest;
}

}  // namespace

std::optional<std::uint32_t> AwaitedRank(const Job& job, const Operation& operation) {
  if (operation.state != Operation::State::kGathering || !job.formed()) return std::nullopt;
  if (job.FirstAwaited(operation.posts)) return std::nullopt;
  if (!operation.paired()) {
    if (operation.posts.ready() == job.local_ranks()) return std::nullopt;
    return job.FirstMissing(operation.posts);
  }
  const OperationSpec& spec = operation.spec;
  if (!job.pairs().at(spec.sequence).waits() || spec.source == ipc::kAnyRank) return std::nullopt;
  return spec.kind == ipc::kSend ? spec.target : spec.source;
}

std::string DescribeWaitChain(const Jobs& jobs, const Job& job, const Operation& operation) {
  const std::optional<std::uint32_t> awaited = AwaitedRank(job, operation);
  if (!awaited) return {};
  std::string text;
  std::vector<const Operation*> seen = {&operation};
  const Job* in = &job;
  std::uint32_t rank = *awaited;
  for (int i = 0; i < kChainMax; ++i) {
    const std::optional<WaitLink> link = OldestOf(jobs, *in, rank);
    if (!link) break;
    const bool is_circle = std::ranges::find(seen, link->operation) != seen.end();
    if (is_circle) return text + "; and so in a circle";
    seen.push_back(link->operation);
    text += fmt::format("; {} waits in {}{} for {}", in->DescribeRank(rank),
                        link->job->DescribeOperation(*link->operation),
                        link->job == &job ? "" : " of job " + link->job->name(),
                        link->job->DescribeRank(link->awaited));
    in = link->job;
    rank = link->awaited;
  }
  return text;
}

}  // namespace headrace::service
