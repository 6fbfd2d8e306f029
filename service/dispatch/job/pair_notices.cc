#include "service/dispatch/job/pair_notices.h"

#include "ipc/base/check.h"

namespace headrace::service {
namespace {

// Blocks of one pair that may be on their lanes before those before them are: an order has fewer
// stages in flight on each lane.
constexpr std::uint32_t kAheadMax = 64;
static_assert(schedule::kInFlightStagesMax < kAheadMax);

SendNotice NoticeOf(SendNoticeKind kind, const Pair& pair) {
  return {.kind = kind,
          .send = pair.send_name(),
          .source = pair.operation.spec.source,
          .target = pair.operation.spec.target};
}

void Push(Job& job, const Pair& pair, SendNotice notice) {
  job.pairs().notices.push_back({pair.node, std::move(notice)});
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
  }
  Push(job, pair, std::move(notice));
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
