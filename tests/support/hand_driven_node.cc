#include "tests/support/hand_driven_node.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"
#include "transport/shm/shm_transport.h"

namespace headrace::support {
namespace {

// No test needs more turns at one moment; one that does would never end.
constexpr int kTurnsMax = 200'000;
constexpr TimeNs kStride = 100 * kMillisecond;

}  // namespace

MakeTransport Loopback(const transport::LoopbackOptions& options) {
  return [options](transport::Waker&) -> std::unique_ptr<transport::Transport> {
    return std::make_unique<transport::LoopbackTransport>(options);
  };
}

MakeTransport SharedMemory(std::uint32_t threads) {
  return [threads](transport::Waker& waker) -> std::unique_ptr<transport::Transport> {
    return std::make_unique<transport::ShmTransport>(threads, waker);
  };
}

bool WatchTap::Send(service::MappingMessage&& message) {
  if (full) return false;
  if (const auto* session = std::get_if<service::DiscardSession>(&message)) {
    discarded.push_back(session->session->identity().id);
    for (std::uint32_t segment = 0; segment < service::kSegmentsMax; ++segment) {
      const auto memory = session->session->FindSegment(SegmentId{segment});
      if (!memory.empty()) on_discard_(memory);
    }
  }
  if (const auto* gone = std::get_if<service::DiscardMemory>(&message)) {
    ++mappings_discarded;
    on_discard_(gone->memory.bytes());
  }
  return mapping_->Send(std::move(message));
}

bool WatchTap::Send(service::WatchMessage&& message) {
  if (const auto* event = std::get_if<service::Event>(&message)) {
    events.push_back(event->text);
    event_uids.push_back(event->uid);
  }
  return watch_->Send(std::move(message));
}

HandDrivenNode::HandDrivenNode(const MakeTransport& make, std::uint64_t credit_bytes,
                               const std::vector<transport::NetworkTransport*>& networks,
                               const transport::Gpus* gpus)
    : board_(std::make_unique<ipc::BoardLayout>()),
      watch_tap_([this](std::span<const std::byte> memory) { OnDiscard(memory); }),
      watch_(wakeable_, rpc_, peers_, *board_, [](const service::Event&) {}),
      mapper_(wakeable_, rpc_, *board_, gpus),
      waker_(wakeable_),
      transport_(make(waker_)),
      dispatch_(wakeable_, doorbells_, rpc_, peers_, watch_tap_, watch_tap_, *board_),
      lane_(0, "lane0", transport_, waker_, wakeable_, dispatch_.inbox()),
      gpus_(gpus) {
  watch_tap_.Connect(watch_.inbox(), mapper_.inbox());
  mapper_.ConnectDispatch(dispatch_.inbox());
  std::vector<service::LanePort> ports;
  ports.push_back({.name = "lane0",
                   .transport = std::string(transport_.capabilities().name),
                   .threads = transport_.capabilities().threads,
                   .credit_bytes = credit_bytes,
                   .inbox = &lane_.inbox()});
  if (gpus_ != nullptr) {
    auto loopback = std::make_unique<DeviceLoopback>();
    gpu_loopback_ = loopback.get();
    gpu_transport_ = std::make_unique<ObservedTransport>(std::move(loopback));
    gpu_lane_ = std::make_unique<service::Lane>(1, "gpu0", *gpu_transport_, waker_, wakeable_,
                                                dispatch_.inbox());
    ports.push_back({.name = "gpu0",
                     .transport = std::string(gpu_transport_->capabilities().name),
                     .credit_bytes = credit_bytes,
                     .inbox = &gpu_lane_->inbox(),
                     .place = service::LanePlace::kInNodeOnGpus});
  }
  for (transport::NetworkTransport* const network : networks) {
    const auto index = static_cast<std::uint8_t>(ports.size());
    const std::string name = "net" + std::to_string(network_lanes_.size());
    network_lanes_.push_back(std::make_unique<service::Lane>(index, name, *network, waker_,
                                                             wakeable_, dispatch_.inbox(), peers_));
    ports.push_back({.name = name,
                     .transport = "simulated",
                     .credit_bytes = credit_bytes,
                     .inbox = &network_lanes_.back()->inbox(),
                     .place = service::LanePlace::kBetweenNodes,
                     .measures_flow = network->capabilities().measures_flow,
                     .device_codecs = network->capabilities().device_codecs});
  }
  dispatch_.ConnectLanes(std::move(ports));
  rpc_.on_message = [this](const service::RpcMessage& message) {
    if (const auto* book = std::get_if<service::BookScratch>(&message)) Book(*book);
  };
}

void HandDrivenNode::Book(const service::BookScratch& message) {
  service::ScratchBooked answer{.request = message.request};
  if (message.bytes > scratch_left_) {
    answer.status =
        Error(Code::kExhausted, "scratch memory for GPUs of " + std::to_string(message.bytes) +
                                    " bytes; memory_per_uid");
  } else {
    scratch_left_ -= message.bytes;
  }
  Send(std::move(answer));
}

ClientEnd& HandDrivenNode::Attach(const JobSpec& job, std::uint32_t rank,
                                  std::size_t segment_size) {
  ipc::Channel::Created created = ipc::Channel::Create().value();
  const SessionId id{++sessions_};
  service::SessionIdentity identity{.id = id,
                                    .job = job.id,
                                    .job_name = job.name,
                                    .epoch = job.epoch,
                                    .rank = rank,
                                    .world_size = job.world_size,
                                    .uid = job.uid,
                                    .pid = static_cast<std::int32_t>(1000 + rank),
                                    .timeout_ms = job.timeout_ms,
                                    .rendezvous = job.rendezvous,
                                    .attached_ns = now};
  Send(service::OpenSession{std::make_unique<service::Session>(
      std::move(identity), ipc::Channel::Open(created.fd.get()).value(),
      UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)))});
  clients_.push_back(std::make_unique<ClientEnd>(id, job.id, rank, std::move(created.channel)));
  service_memory_[id];
  if (segment_size != 0) AddSegment(*clients_.back(), segment_size);
  return *clients_.back();
}

SegmentId HandDrivenNode::AddSegment(ClientEnd& client, std::size_t size) {
  ipc::SealedMemory memory = ipc::CreateSealedMemory("headrace-test", size).value();
  Mapping mapping = ipc::MapSealedMemory(memory.fd.get(), size).value();
  std::vector<std::span<const std::byte>>& known = service_memory_[client.id()];
  const SegmentId segment{static_cast<std::uint32_t>(known.size())};
  known.emplace_back(mapping.data(), mapping.size());
  client.Keep(std::move(memory.mapping));
  Send(service::AddSegment{client.id(), segment, std::move(mapping)});
  return segment;
}

ClientEnd& HandDrivenNode::AttachOnGpu(const JobSpec& job, std::uint32_t rank, int device,
                                       std::size_t segment_size) {
  ClientEnd& client = Attach(job, rank, 0);
  AddDeviceSegment(client, device, segment_size);
  return client;
}

SegmentId HandDrivenNode::AddDeviceSegment(ClientEnd& client, int device, std::size_t size) {
  transport::DeviceArena arena =
      transport::DeviceArena::Allocate(gpus_->driver(), device, size).value();
  const transport::DeviceGrant grant = arena.Grant().value();
  service::SegmentMemory memory(gpus_->Import(grant.handle, grant.fds).value());
  std::vector<std::span<const std::byte>>& known = service_memory_[client.id()];
  const SegmentId segment{static_cast<std::uint32_t>(known.size())};
  known.emplace_back(memory.bytes());
  client.Keep(std::move(arena));
  Send(service::AddSegment{client.id(), segment, std::move(memory)});
  return segment;
}

void HandDrivenNode::AddTensor(ClientEnd& client, TensorId id, const service::Tensor& tensor) {
  Send(service::AddTensors{client.id(), id, {tensor}});
}

void HandDrivenNode::Close(ClientEnd& client, bool orderly, const std::string& cause) {
  Send(service::CloseSession{client.id(), orderly, cause});
}

void HandDrivenNode::Send(service::DispatchMessage message) {
  const bool sent = dispatch_.inbox().Send(std::move(message));
  HR_CHECK(sent);
}

void HandDrivenNode::SendToNetworkLanes(const service::LaneMessage& message) {
  for (std::size_t rail = 0; rail < network_lanes_.size(); ++rail) SendToNetworkLane(rail, message);
}

void HandDrivenNode::SendToNetworkLane(std::size_t rail, service::LaneMessage message) {
  const bool sent = network_lanes_.at(rail)->inbox().Send(std::move(message));
  HR_CHECK(sent);
}

bool HandDrivenNode::TurnNetworkLanes() {
  bool worked = false;
  for (const auto& lane : network_lanes_) worked |= lane->DoWork(now);
  return worked;
}

bool HandDrivenNode::Settle() {
  for (int turn = 0; turn < kTurnsMax; ++turn) {
    bool worked = dispatch_.DoWork(now);
    worked |= lane_.DoWork(now);
    worked |= TurnGpuLane();
    worked |= TurnNetworkLanes();
    worked |= TurnWatch();
    // As a runner does: who says that it may not sleep, or whose time has come, gets another turn.
    worked |= !dispatch_.PrepareToSleep() || !lane_.PrepareToSleep();
    for (const auto& lane : network_lanes_) worked |= !lane->PrepareToSleep();
    dispatch_.Awake();
    lane_.Awake();
    if (!worked && dispatch_.NextDeadline() > now) return turn > 0;
  }
  HR_CHECK(false, "the node never settles");
  return false;
}

void HandDrivenNode::Advance(TimeNs time_ns) {
  // Dispatch gets the turns that it asks for, but not each look for a ready word: what comes much
  // later than it was due is a standstill (Stall).
  const TimeNs end = now + time_ns;
  while (dispatch_.NextDeadline() < end && now < end) {
    now = std::min(end, std::max(dispatch_.NextDeadline(), now + kStride));
    Settle();
  }
  Stall(end - now);
}

void HandDrivenNode::Stall(TimeNs time_ns) {
  now += time_ns;
  Settle();
}

bool HandDrivenNode::Discarded(const ClientEnd& client) const {
  return std::ranges::find(watch_tap_.discarded, client.id()) != watch_tap_.discarded.end();
}

std::span<const std::byte> HandDrivenNode::ServiceMemory(const ClientEnd& client,
                                                         std::uint32_t segment) const {
  return service_memory_.at(client.id()).at(segment);
}

bool HandDrivenNode::Uses(std::span<const std::byte> memory) const {
  return transport_.Uses(memory) || (gpu_transport_ && gpu_transport_->Uses(memory));
}

void HandDrivenNode::OnDiscard(std::span<const std::byte> memory) {
  if (Uses(memory)) ++discarded_in_use_;
  // The same addresses may be another session's soon.
  for (auto& [id, segments] : service_memory_) {
    for (std::span<const std::byte>& segment : segments) {
      if (segment.data() == memory.data()) segment = {};
    }
  }
}

std::optional<ipc::JobRow> HandDrivenNode::JobRow(JobId job) const {
  for (const auto& slot : board_->jobs) {
    if (slot.row.id == job.value) return ipc::ReadRow(slot);
  }
  return std::nullopt;
}

std::optional<ipc::PlanRow> HandDrivenNode::PlanRow(JobId job) const {
  for (const auto& slot : board_->plans) {
    if (slot.row.job_id == job.value) return ipc::ReadRow(slot);
  }
  return std::nullopt;
}

std::optional<ipc::RankRow> HandDrivenNode::RankRow(JobId job, std::uint32_t rank) const {
  for (const auto& slot : board_->ranks) {
    if (slot.row.job_id == job.value && slot.row.rank == rank) return ipc::ReadRow(slot);
  }
  return std::nullopt;
}

std::optional<ipc::QueueRow> HandDrivenNode::QueueRow(JobId job, std::uint64_t block) const {
  for (const auto& slot : board_->queue) {
    if (slot.row.job_id == job.value && slot.row.block == block) return ipc::ReadRow(slot);
  }
  return std::nullopt;
}

std::size_t HandDrivenNode::RowsInUse() const {
  const auto jobs = std::ranges::count_if(board_->jobs, [](auto& s) { return s.row.id != 0; });
  const auto ranks =
      std::ranges::count_if(board_->ranks, [](auto& s) { return s.row.job_id != 0; });
  const auto queue = std::ranges::count_if(board_->queue, [](auto& s) { return s.row.block != 0; });
  const auto plans =
      std::ranges::count_if(board_->plans, [](auto& s) { return s.row.job_id != 0; });
  const auto blocks =
      std::ranges::count_if(board_->plan_blocks, [](auto& s) { return s.row.job_id != 0; });
  return static_cast<std::size_t>(jobs + ranks + queue + plans + blocks);
}

}  // namespace headrace::support
