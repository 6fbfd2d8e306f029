#include "service/dispatch/job/pair_notices.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "ipc/base/check.h"

namespace headrace::service {
namespace {

// Blocks of one pair that may be on their lanes before those before them are: a traffic class has
// fewer stages in flight on each lane.
constexpr std::uint32_t kAheadMax = 64;
static_assert(schedule::kInFlightStagesMax < kAheadMax);

SendNotice NoticeOf(SendNoticeKind kind, const Pair& pair) {
  return {.kind = kind,
          .send = pair.send_name(),
          .source = pair.operation.spec.source,
          .target = pair.operation.spec.target};
}

void Push(Job& job, const Pair& pair, SendNotice notice) {
  if (notice.FromSender() && notice.code != Code::kOk) job.pairs().CountFailed(notice.source);
  job.pairs().notices.push_back({pair.node, std::move(notice)});
}

// Whether the message travels with its announcement. Past the lanes' queue, so it is short, and
// nobody has asked to hold the job's bytes back or to end it.
bool TravelsAtOnce(const Job& job, const Pair& pair) {
  const OperationSpec& spec = pair.operation.spec;
  const std::uint64_t bytes = spec.Bytes();
  return !spec.OnGpu() && !pair.operation.posts.Awaits(spec.source) && bytes > 0 &&
         bytes <= kSendDataMax && job.pairs().data_going[pair.node] + bytes <= kSendDataOpenMax &&
         job.pairs().MayKeepSent(spec.source) && job.in_force.share.limit_bytes_per_s == 0 &&
         !job.steering.paused() && !job.in_force.draining;
}

}  // namespace

void SendAnnounced(Job& job, Pair& pair, const std::optional<Failure>& failure) {
  const OperationSpec& spec = pair.operation.spec;
  HR_CHECK(job.nodes() != nullptr && !pair.announced, spec.sequence);
  pair.away = Away::kGoes;
  pair.node = NodeOf(*job.nodes(), spec.target);
  pair.announced = true;
  pair.operation.blocks_allowed = 0;
  SendNotice notice = NoticeOf(SendNoticeKind::kAnnounced, pair);
  notice.tag = spec.tag;
  notice.count = spec.count;
  notice.dtype = spec.dtype;
  notice.on_gpu = spec.OnGpu();
  notice.ready = !pair.operation.posts.Awaits(spec.source);
  if (failure) {
    notice.code = failure->code;
    notice.cause = failure->text;
    pair.other_knows = true;
  } else if (TravelsAtOnce(job, pair)) {
    const std::byte* const memory = job.memory(spec.sequence, spec.source);
    notice.data.assign(memory, memory + spec.Bytes());
    job.pairs().HoldData(pair, notice.data.size());
  }
  Push(job, pair, std::move(notice));
}

std::vector<std::uint64_t> SendsToAnnounce(Job& job) {
  std::vector<std::uint64_t> sends;
  job.ForEachOpen([&](const Operation& operation) {
    const OperationSpec& spec = operation.spec;
    if (operation.paired() && spec.kind == ipc::kSend && !job.IsHere(spec.target)) {
      sends.push_back(spec.sequence);
    }
  });
  std::ranges::sort(sends);
  return sends;
}

void SendWhoHasLeft(Job& job) {
  for (const std::uint32_t rank : job.local()) {
    if (!job.rank_entry(rank).gone) continue;
    SendLeft(job, rank,
             {Code::kPeerLost, fmt::format("{} left the job after {}", job.DescribeRank(rank),
                                           job.DescribeProgress(rank))});
  }
}

void SendReceived(Job& job, const Pair& pair) {
  Push(job, pair, NoticeOf(SendNoticeKind::kReceived, pair));
}

void SendLeft(Job& job, std::uint32_t rank, const Failure& failure) {
  for (std::uint32_t node = 0; node < job.nodes()->data_nodes_count(); ++node) {
    if (node == job.nodes()->self) continue;
    job.pairs().notices.push_back({node,
                                   {.kind = SendNoticeKind::kLeft,
                                    .source = rank,
                                    .code = failure.code,
                                    .cause = failure.text}});
  }
}

void SendReady(Job& job, const Pair& pair) {
  if (!pair.announced || pair.other_knows) return;
  Push(job, pair, NoticeOf(SendNoticeKind::kReady, pair));
}

void OnBlockStands(Job& job, Pair& pair, std::uint32_t block) {
  HR_CHECK(block >= pair.blocks_released && block - pair.blocks_released < kAheadMax, block,
           pair.blocks_released);
  pair.standing_ahead |= std::uint64_t{1} << (block - pair.blocks_released);
  if ((pair.standing_ahead & 1) == 0) return;
  while ((pair.standing_ahead & 1) != 0) {
    pair.standing_ahead >>= 1;
    ++pair.blocks_released;
  }
  SendNotice notice = NoticeOf(SendNoticeKind::kMayGo, pair);
  notice.blocks = pair.blocks_released;
  Push(job, pair, std::move(notice));
}

void SendEnded(Job& job, Pair& pair, const Failure& failure) {
  // What fails the job is sent to all nodes another way.
  if (pair.away == Away::kNo || pair.other_knows || job.failed) return;
  pair.other_knows = true;
  SendNotice notice = NoticeOf(
      pair.away == Away::kGoes ? SendNoticeKind::kWithdrawn : SendNoticeKind::kRefused, pair);
  notice.code = failure.code;
  notice.cause = failure.text;
  Push(job, pair, std::move(notice));
}

void SendRefused(Job& job, std::uint32_t node, const SendNotice& announced,
                 const Failure& failure) {
  job.pairs().notices.push_back({node,
                                 {.kind = SendNoticeKind::kRefused,
                                  .send = announced.send,
                                  .source = announced.source,
                                  .target = announced.target,
                                  .code = failure.code,
                                  .cause = failure.text}});
}

}  // namespace headrace::service
