#include "transport/nccl/nccl_order.h"

#include <fmt/format.h>

#include <utility>

#include "ipc/base/check.h"

namespace headrace::transport {

Result<std::unique_ptr<NcclOrder>> NcclOrder::Make(const NcclRail& rail, std::uint32_t self,
                                                   std::uint32_t nodes_count) {
  std::unique_ptr<NcclOrder> order(new NcclOrder(rail, self, nodes_count));
  Result<CudaStream> stream = CreateStream(rail.context, kCuStreamNonBlocking, 0);
  if (!stream) return stream.error();
  order->stream_ = std::move(stream).value();
  const NcclLaunchStream launch_stream{.context = &rail.context,
                                       .stream = order->stream_.get().thing};
  auto queue = NcclQueue::Make(*order, {&launch_stream, 1}, rail.queue);
  if (!queue) return queue.error();
  order->queue_ = std::move(queue).value();
  return order;
}

void NcclOrder::Add(const Transfer& transfer, std::optional<Error> error) {
  if (!error && error_) error = error_;
  HR_CHECK(last_ - first_ < traffic_due_.size(), first_, last_);
  traffic_due_[last_++ % traffic_due_.size()] = TrafficOf(transfer);
  queue_->Add(transfer, std::move(error));
}

NcclTraffic NcclOrder::TrafficOf(const Transfer& transfer) const {
  const std::uint64_t bytes = transfer.Bytes();
  if (transfer.kind == Collective::kAllReduce) {
    const std::uint64_t each = 2 * bytes / nodes_count_ * (nodes_count_ - 1);
    return {.sent = each, .received = each};
  }
  const bool gives = (transfer.kind == Collective::kBroadcast) == (transfer.root == self_);
  return gives ? NcclTraffic{.sent = bytes} : NcclTraffic{.received = bytes};
}

bool NcclOrder::Step(TimeNs now, std::vector<Completion>& completions) {
  // The host's lane knows the meeting by a transfer's token, which must not end before it.
  if (ends_ && id_exchange_) return true;
  const std::size_t before = completions.size();
  const bool open = queue_->Step(now, completions);
  // The queue ends them in the order in which they were added.
  for (std::size_t i = before; i < completions.size(); ++i) {
    HR_CHECK(first_ != last_, completions[i].token);
    const NcclTraffic& traffic = traffic_due_[first_++ % traffic_due_.size()];
    if (completions[i].code != Code::kOk) continue;
    traffic_.sent += traffic.sent;
    traffic_.received += traffic.received;
  }
  return open;
}

Result<NcclGroup*> NcclOrder::GroupFor(const Transfer&, TimeNs now) {
  if (error_) return *error_;
  if (!has_id_) return nullptr;
  if (!group_) Form();
  Result<NcclGroup*> group = PollGroup(now);
  if (!group && !error_) error_ = group.error();
  return group;
}

PostResult NcclOrder::ExchangeId(const Transfer& transfer, TimeNs now) {
  constexpr std::uint32_t kMaker = 0;  // of the id: it can be used for one set of ranks only
  if (begun_) return PostResult::kAccepted;
  if (self_ == kMaker && id_ == NcclId{}) {
    Status made = rail_.library.Check(rail_.library.call().get_unique_id(&id_),
                                      "name a set of ranks between nodes");
    if (!made) {
      error_ = made.error();
      begun_ = true;
      return PostResult::kAccepted;
    }
  }
  Transfer introduction{.token = transfer.token,
                        .kind = Collective::kBroadcast,
                        .dtype = DType::kUInt8,
                        .root = kMaker,
                        .count = sizeof id_,
                        .group = transfer.group,
                        .position = transfer.position,
                        .members_count = nodes_count_};
  HR_CHECK(self_ < nodes_count_, self_, nodes_count_);
  introduction.members[self_] = reinterpret_cast<std::byte*>(id_.bytes.data());
  if (rail_.host.Post(introduction, now) == PostResult::kBusy) return PostResult::kBusy;
  begun_ = true;
  id_exchange_ = transfer.token;
  begun_ns_ = now;
  return PostResult::kAccepted;
}

bool NcclOrder::OnIdExchanged(const Completion& completion) {
  if (id_exchange_ != completion.token) return false;
  id_exchange_.reset();
  has_id_ = completion.code == Code::kOk;
  if (!has_id_ && !error_) {
    const bool differs = completion.code == Code::kMismatch;
    error_ =
        Error(completion.code, completion.cause)
            .Within(differs ? "meet the other nodes for NCCL (all of them post GPUs' memory, or "
                              "all of them the host's)"
                            : "meet the other nodes for NCCL");
  }
  return true;
}

void NcclOrder::Form() {
  group_ = NcclGroup::Form(rail_.library,
                           {{.context = &rail_.context,
                             .stream = stream_.get().thing,
                             .rank = self_,
                             .launch_stream = 0}},
                           nodes_count_, id_, rail_.ctas_max);
}

Result<NcclGroup*> NcclOrder::PollGroup(TimeNs now) {
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
  if (id_exchange_) rail_.host.Cancel(*id_exchange_);
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
  return ends_ && !id_exchange_ && queue_->empty() && ended;
}

}  // namespace headrace::transport
