// Posts that await a word of the rank's GPU: read and checked with their record, and open from then
// on, so that they time out and fail like others; ready, and by that posted for whoever waits or
// measures, once the word was seen.
#include <fmt/format.h>

#include <bit>
#include <utility>

#include "ipc/base/check.h"
#include "service/dispatch/flow.h"

namespace headrace::service {

void Flow::Await(Job& job, std::uint32_t rank, const ipc::Record& record, std::uint64_t sequence) {
  std::vector<AwaitedPost>& awaited = job.member(rank).awaited;
  // Once: later ones find the memory.
  if (awaited.capacity() < kAwaitedMax) awaited.reserve(kAwaitedMax);
  if (awaited.size() == kAwaitedMax) {
    const std::size_t dropped = std::erase_if(
        awaited, [&](const AwaitedPost& post) { return !IsAwaited(job, rank, post); });
    job.awaited -= dropped;
    awaited_ -= dropped;
  }
  HR_CHECK(awaited.size() < kAwaitedMax, rank);
  awaited.push_back({.record = record, .sequence = sequence});
  ++job.awaited;
  ++awaited_;
}

bool Flow::IsAwaited(Job& job, std::uint32_t rank, const AwaitedPost& post) {
  if (post.sequence == 0) {
    const Session::Gradients& gradients = *job.member(rank).session->gradients();
    return job.gradients->IsAwaited(rank, post.record.tensor - gradients.first.value,
                                    post.record.commit);
  }
  const Operation& operation = job.slot(post.sequence);
  return operation.open() && operation.shape.sequence == post.sequence && !operation.failure &&
         (operation.awaited >> rank & 1U) != 0;
}

bool Flow::TakeReady(Jobs& jobs, TimeNs now) {
  if (awaited_ == 0) return false;
  looked_ns_ = now;
  bool any = false;
  for (const std::unique_ptr<Job>& job : jobs) {
    if (job->awaited == 0) continue;
    for (std::uint32_t rank = 0; rank < job->world_size(); ++rank) {
      any |= TakeReadyOf(*job, rank, now);
    }
  }
  return any;
}

// In the order of the records. What a rank's end or a failure has settled is forgotten here.
bool Flow::TakeReadyOf(Job& job, std::uint32_t rank, TimeNs now) {
  Member& member = job.member(rank);
  std::size_t kept = 0;
  bool any = false;
  for (std::size_t i = 0; i < member.awaited.size(); ++i) {
    const AwaitedPost post = member.awaited[i];
    if (member.session == nullptr || !IsAwaited(job, rank, post)) continue;
    if (!member.session->IsReady(post.record.commit)) {
      member.awaited[kept++] = post;
      continue;
    }
    MarkReady(job, rank, post, now);
    any = true;
  }
  const std::size_t settled = member.awaited.size() - kept;
  member.awaited.resize(kept);
  job.awaited -= settled;
  awaited_ -= settled;
  return any || settled > 0;
}

void Flow::MarkReady(Job& job, std::uint32_t rank, const AwaitedPost& post, TimeNs now) {
  job.dirty = true;
  if (post.sequence == 0) {
    const auto trouble =
        plans_.MarkReady(job, rank, std::bit_cast<ipc::GradientRecord>(post.record), now);
    if (trouble) FailGradients(job, *trouble, now);
    return;
  }
  Operation& operation = job.slot(post.sequence);
  Posted posted = operation.shape;
  posted.tensor = TensorId{post.record.tensor};
  posted.data = job.memory(post.sequence, rank);
  if (!UseMemory(job, operation, rank, posted, now)) return;
  // What others wait for is waited for since the first of them was ready.
  if (operation.ready() == 0) operation.opened_ns = now;
  operation.awaited &= ~(RankMask{1} << rank);
  recorder_.Post(job, post.sequence, rank, now);
  recorder_.Take(job, operation, rank, operation.shape.Bytes(), now);
  if (operation.state != Operation::State::kGathering) return;
  if (IsReady(job, operation)) {
    MakeReady(job, operation, now);
  } else {
    ShowGathering(job, operation);
  }
}

}  // namespace headrace::service
