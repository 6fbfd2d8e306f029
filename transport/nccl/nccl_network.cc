#include "transport/nccl/nccl_network.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "ipc/base/check.h"
#include "transport/nccl/nccl_scalar.h"

namespace headrace::transport {
namespace {

constexpr int kOrderShift = 63;  // the bit of a position that tells orders apart

NcclRail RailOf(NetworkTransport& host, const Gpus& gpus, const NcclLibrary& library,
                const NcclNetworkOptions& options) {
  return {.host = host,
          .library = library,
          .context = gpus.context(options.device),
          .queue = {.transfers_max = options.transfers_max,
                    .piece_size = options.nccl.piece_size,
                    .cancel_patience_ns = options.nccl.cancel_patience_ns,
                    .abort_timeout_ns = options.nccl.abort_timeout_ns,
                    .gate = &gpus.memory_gate()},
          .ctas_max = options.nccl.ctas_max,
          .form_timeout_ns = options.nccl.form_timeout_ns};
}

Error TooFew(const NcclNetworkOptions& options, std::uint32_t multiprocessors_count) {
  return Error(
      Code::kInvalidArgument,
      fmt::format("gpu_network is nccl and gpu_ctas is {}, but GPU {} has {} "
                  "multiprocessors: both orders of a job between nodes and the lane inside "
                  "the node must run side by side; set gpu_ctas to {} at most, or "
                  "gpu_network to staged",
                  options.nccl.ctas_max, options.device, multiprocessors_count,
                  multiprocessors_count / (kNcclOrdersMin + 1)));
}

}  // namespace

Result<std::unique_ptr<NcclNetwork>> NcclNetwork::Open(NetworkTransport& host, const Gpus& gpus,
                                                       const NcclNetworkOptions& options) {
  HR_CHECK(options.device >= 0 && static_cast<std::size_t>(options.device) < gpus.count(),
           options.device);
  HR_CHECK(options.nccl.piece_size > 0 && options.nccl.piece_size % 128 == 0);
  const auto multiprocessors_count = static_cast<std::uint32_t>(
      gpus.devices()[static_cast<std::size_t>(options.device)].multiprocessors_count);
  const std::uint32_t fit = NcclOrdersThatFit(multiprocessors_count, options.nccl.ctas_max);
  if (fit < kNcclOrdersMin) return TooFew(options, multiprocessors_count);
  auto library = NcclLibrary::Open(options.nccl.library);
  if (!library) return library.error();
  return std::unique_ptr<NcclNetwork>(
      new NcclNetwork(host, gpus, std::move(library).value(), options, fit));
}

NcclNetwork::NcclNetwork(NetworkTransport& host, const Gpus& gpus,
                         std::unique_ptr<NcclLibrary> library, const NcclNetworkOptions& options,
                         std::uint32_t orders_that_fit)
    : library_(std::move(library)),
      rail_(RailOf(host, gpus, *library_, options)),
      device_(options.device),
      orders_max_(std::min(options.orders_max, orders_that_fit)),
      transfers_max_(options.transfers_max),
      patience_ns_(options.nccl.abort_timeout_ns + kSecond),
      capabilities_(host.capabilities()) {
  capabilities_.device_memory = true;
  // NCCL's kernels wait for other nodes on the GPU, where nobody sees whether bytes move.
  capabilities_.measures_flow = false;
  refused_.reserve(transfers_max_);
}

NcclNetwork::~NcclNetwork() {
  while (!groups_.empty()) Close(groups_.begin()->first, "the lane ends", false);
  const TimeNs deadline = MonotonicNow() + patience_ns_;
  std::vector<Completion> completions;
  while (!leaving_.empty() && MonotonicNow() < deadline) {
    DoWork(MonotonicNow(), completions);
    std::this_thread::yield();
  }
}

std::string NcclNetwork::WireNames() const {
  // What may be cut off stands last.
  return fmt::format("NCCL {} on GPU {}; {}", NcclVersionText(library_->version()), device_,
                     rail_.host.WireNames());
}

Status NcclNetwork::OpenGroup(const GroupOptions& options) {
  Status opened = rail_.host.OpenGroup(options);
  if (!opened) return opened;
  const auto members_count = static_cast<std::uint32_t>(options.members.size());
  groups_[options.group] = {.self = options.self,
                            .nodes_count = members_count - options.servers_count,
                            .servers_count = options.servers_count};
  return opened;
}

void NcclNetwork::SetCost(std::uint32_t group, const CostLine& cost) {
  rail_.host.SetCost(group, cost);
}

void NcclNetwork::SetShare(std::uint32_t group, const Share& share) {
  rail_.host.SetShare(group, share);
}

void NcclNetwork::CloseGroup(std::uint32_t group, const std::string& cause) {
  Close(group, cause, true);
}

void NcclNetwork::Close(std::uint32_t group, const std::string& cause, bool finish) {
  const auto found = groups_.find(group);
  if (found != groups_.end()) {
    End(found->second, Error(Code::kCancelled, cause), now_, finish);
    for (auto& order : found->second.orders) {
      if (order) leaving_.push_back(std::move(order));
    }
    groups_.erase(found);
  }
  rail_.host.CloseGroup(group, cause);
}

void NcclNetwork::End(NodeGroup& group, const Error& error, TimeNs now, bool finish) {
  if (!group.error) group.error = error;
  poll_timer_.PollNow(now);
  for (const auto& order : group.orders) {
    if (order) order->End(*group.error, now, finish);
  }
}

bool NcclNetwork::IsNccls(const Transfer& transfer) const {
  if (transfer.kind == Collective::kBarrier) return false;
  const auto found = groups_.find(transfer.group);
  return found != groups_.end() && transfer.devices[found->second.self] != kHost;
}

std::optional<Error> NcclNetwork::WhyNot(const NodeGroup& group, const Transfer& transfer) const {
  if (transfer.devices[group.self] != device_) {
    return Error(Code::kInvalidArgument, fmt::format("memory of GPU {} on the lane of GPU {}",
                                                     transfer.devices[group.self], device_));
  }
  if (group.servers_count != 0) {
    return Error(Code::kInvalidArgument,
                 "NCCL has no servers of sums: give the job none, or let its memory go over the "
                 "host's lane");
  }
  const std::uint32_t divisor = transfer.divisor != 0 ? transfer.divisor : transfer.members_count;
  if (Reduces(transfer.kind) && transfer.reduction == Reduction::kAverage &&
      !IsFloating(transfer.dtype) && divisor != transfer.members_count) {
    return Error(Code::kInvalidArgument,
                 fmt::format("NCCL divides sums of {} by the number of nodes, {}, and not by {}: "
                             "let them go over the host's lane",
                             Name(transfer.dtype), transfer.members_count, divisor));
  }
  return std::nullopt;
}

PostResult NcclNetwork::Refuse(const Transfer& transfer, const Error& error, TimeNs now) {
  if (refused_.size() == transfers_max_) return PostResult::kBusy;
  refused_.push_back({.token = transfer.token,
                      .code = error.code(),
                      .cause = error.text(),
                      .begin_ns = now,
                      .end_ns = now});
  return PostResult::kAccepted;
}

Result<NcclOrder*> NcclNetwork::OrderOf(NodeGroup& group, const Transfer& transfer) {
  std::unique_ptr<NcclOrder>& order = group.orders[transfer.position >> kOrderShift];
  if (order) return order.get();
  std::size_t count = leaving_.size();
  for (const auto& [number, other] : groups_) {
    count += static_cast<std::size_t>(
        std::ranges::count_if(other.orders, [](const auto& each) { return each != nullptr; }));
  }
  if (count >= orders_max_) {
    return Error(Code::kExhausted,
                 fmt::format("NCCL has {} orders of groups on GPU {}, and no more than that run "
                             "side by side: end a job first, set a smaller gpu_ctas, or let its "
                             "memory go over the host's lane",
                             count, device_));
  }
  auto made = NcclOrder::Make(rail_, group.self, group.nodes_count);
  if (!made) return made.error();
  order = std::move(made).value();
  return order.get();
}

PostResult NcclNetwork::Post(const Transfer& transfer, TimeNs now) {
  now_ = now;
  if (!IsNccls(transfer)) return rail_.host.Post(transfer, now);
  CheckMemory(transfer);
  NodeGroup& group = groups_.at(transfer.group);
  HR_CHECK(transfer.members_count == group.nodes_count, transfer.members_count);
  if (group.error) return Refuse(transfer, *group.error, now);
  if (const auto reason = WhyNot(group, transfer)) return Refuse(transfer, *reason, now);
  const Result<NcclOrder*> order = OrderOf(group, transfer);
  if (!order) return Refuse(transfer, order.error(), now);
  if (!(*order)->HasRoom()) return PostResult::kBusy;
  if ((*order)->ExchangeId(transfer, now) == PostResult::kBusy) return PostResult::kBusy;
  (*order)->Add(transfer, std::nullopt);
  poll_timer_.PollNow(now);
  return PostResult::kAccepted;
}

void NcclNetwork::Cancel(std::uint64_t token) {
  for (auto& [number, group] : groups_) {
    for (const auto& order : group.orders) {
      if (!order || !order->Has(token)) continue;
      return End(group, Error(Code::kCancelled, "cancelled"), now_, false);
    }
  }
  rail_.host.Cancel(token);
}

std::uint64_t NcclNetwork::Missing(std::uint64_t token) const { return rail_.host.Missing(token); }

bool NcclNetwork::OnIdExchanged(const Completion& completion) {
  for (auto& [number, group] : groups_) {
    for (const auto& order : group.orders) {
      if (order && order->OnIdExchanged(completion)) return true;
    }
  }
  return std::ranges::any_of(leaving_,
                             [&](const auto& order) { return order->OnIdExchanged(completion); });
}

bool NcclNetwork::StepOrder(NcclOrder& order, TimeNs now, std::vector<Completion>& completions) {
  const bool open = order.Step(now, completions);
  const NcclTraffic traffic = order.PopTraffic();
  traffic_.sent += traffic.sent;
  traffic_.received += traffic.received;
  return open;
}

bool NcclNetwork::StepGroups(TimeNs now, std::vector<Completion>& completions) {
  bool open = false;
  for (auto& [number, group] : groups_) {
    for (const auto& order : group.orders) {
      if (!order) continue;
      open = StepOrder(*order, now, completions) || open;
      // What half of the nodes have moved cannot be taken back: the group fails as a whole.
      if (order->error()) End(group, *order->error(), now, false);
    }
  }
  for (const auto& order : leaving_) open = StepOrder(*order, now, completions) || open;
  std::erase_if(leaving_, [](const auto& order) { return order->gone(); });
  return open || !leaving_.empty();
}

bool NcclNetwork::DoWork(TimeNs now, std::vector<Completion>& completions) {
  now_ = now;
  completions.insert(completions.end(), refused_.begin(), refused_.end());
  refused_.clear();
  hosts_.clear();
  const bool worked = rail_.host.DoWork(now, hosts_);
  for (Completion& completion : hosts_) {
    if (!OnIdExchanged(completion)) completions.push_back(std::move(completion));
  }
  const bool open = StepGroups(now, completions);
  counters_ = rail_.host.counters();
  counters_.bytes_sent += traffic_.sent;
  counters_.bytes_received += traffic_.received;
  const std::uint64_t before = std::exchange(progress_, Progress());
  return poll_timer_.OnPolled(open, progress_ != before, now) || worked;
}

std::uint64_t NcclNetwork::Progress() const {
  std::uint64_t progress = 0;
  for (const auto& [number, group] : groups_) {
    for (const auto& order : group.orders) progress += order ? order->progress() : 0;
  }
  for (const auto& order : leaving_) progress += order->progress();
  return progress;
}

bool NcclNetwork::PrepareToSleep() { return refused_.empty() && rail_.host.PrepareToSleep(); }

TimeNs NcclNetwork::NextLook() const {
  return std::min(poll_timer_.next_ns(), rail_.host.NextLook());
}

}  // namespace headrace::transport
