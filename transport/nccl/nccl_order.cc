#include "transport/nccl/nccl_order.h"

#include <fmt/format.h>

#include <utility>

namespace headrace::transport {

Result<std::unique_ptr<NcclOrder>> NcclOrder::Make(const NcclRail& rail, std::uint32_t self,
                                                   std::uint32_t nodes_count) {
  std::unique_ptr<NcclOrder> order(new NcclOrder(rail, self, nodes_count));
  Result<CudaStream> stream = CreateStream(rail.context, kCuStreamNonBlocking, 0);
  if (!stream) return stream.error();
  order->stream_ = std::move(stream).value();
  const NcclTrack track{.context = &rail.context, .stream = order->stream_.get().thing};
  auto queue = NcclQueue::Make(*order, {&track, 1}, rail.queue);
  if (!queue) return queue.error();
  order->queue_ = std::move(queue).value();
  return order;
}

void NcclOrder::Add(const Transfer& transfer, std::optional<Error> error) {
  if (!error && error_) error = error_;
  queue_->Add(transfer, std::move(error));
}

bool NcclOrder::Step(TimeNs now, std::vector<Completion>& completions) {
  // The host's lane knows the meeting by a transfer's token, which must not end before it.
  if (ends_ && meeting_) return true;
  return queue_->Step(now, completions);
}

Result<NcclGroup*> NcclOrder::GroupFor(const Transfer& transfer, TimeNs now) {
  Status done;
  if (!met_ && !meeting_) done = Meet(transfer, now);
  if (done && met_ && !group_) done = Form();
  if (done && !group_) return nullptr;
  Result<NcclGroup*> group = done ? LookAtGroup(now) : Result<NcclGroup*>(done.error());
  if (!group && !error_) error_ = group.error();
  return group;
}

Status NcclOrder::Meet(const Transfer& transfer, TimeNs now) {
  constexpr std::uint32_t kMaker = 0;  // of the id: it can be used for one set of ranks only
  if (self_ == kMaker && id_ == NcclId{}) {
    Status made = rail_.library.Check(rail_.library.call().get_unique_id(&id_),
                                      "name a set of ranks between nodes");
    if (!made) return made;
  }
  Transfer telling{.token = transfer.token,
                   .kind = Collective::kBroadcast,
                   .dtype = DType::kUInt8,
                   .root = kMaker,
                   .count = sizeof id_,
                   .group = transfer.group,
                   .position = transfer.position,
                   .members_count = nodes_count_};
  telling.members[self_] = reinterpret_cast<std::byte*>(id_.bytes.data());
  // Busy: again the next time.
  if (rail_.host.Post(telling, now) == PostResult::kAccepted) {
    meeting_ = transfer.token;
    begun_ns_ = now;
  }
  return {};
}

bool NcclOrder::TakeMeeting(const Completion& completion) {
  if (meeting_ != completion.token) return false;
  meeting_.reset();
  met_ = completion.code == Code::kOk;
  if (!met_ && !error_) {
    error_ = Error(completion.code, completion.cause).Within("meet the other nodes for NCCL");
  }
  return true;
}

Status NcclOrder::Form() {
  auto formed = NcclGroup::Form(
      rail_.library,
      {{.context = &rail_.context, .stream = stream_.get().thing, .rank = self_, .track = 0}},
      nodes_count_, id_, rail_.ctas_max);
  if (!formed) return formed.error().Within("let NCCL form ranks between nodes");
  group_ = std::move(formed).value();
  return {};
}

Result<NcclGroup*> NcclOrder::LookAtGroup(TimeNs now) {
  if (ready_) return group_.get();
  const Result<bool> formed = group_->Poll();
  if (!formed) return formed.error().Within("let NCCL form ranks between nodes");
  if (*formed) {
    ready_ = true;
    return group_.get();
  }
  if (now - begun_ns_ < rail_.form_timeout_ns) return nullptr;
  return Error(
      Code::kTimeout,
      fmt::format("NCCL has not formed ranks of {} nodes in {} s: check NCCL_SOCKET_IFNAME "
                  "and that nodes reach each other there",
                  nodes_count_, rail_.form_timeout_ns / kSecond));
}

void NcclOrder::Lost(NcclGroup&, const Error& error) {
  lost_ = true;
  if (!error_) error_ = error;
}

void NcclOrder::End(const Error& error, TimeNs now, bool finish) {
  if (ends_) return;
  ends_ = true;
  if (!error_) error_ = error;
  if (meeting_) rail_.host.Cancel(*meeting_);
  queue_->FailAll(*error_, now);
  if (!group_ || lost_) return;
  // Nothing is under way.
  if (ready_ && finish) {
    group_->Finish();
  } else {
    group_->Abort();
  }
}

bool NcclOrder::gone() const {
  const bool ended = !group_ || group_->ended() || queue_->broken();
  return ends_ && !meeting_ && queue_->empty() && ended;
}

}  // namespace headrace::transport
