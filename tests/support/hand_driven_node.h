// The service's data path in one process and on one thread, driven by hand with a made-up clock:
// the unchanged Dispatch, Lane, Mapper and Watch over a transport of the test's choice, with client
// ends on one side and, in the place of rpc and peers, inboxes that record.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ipc/board.h"
#include "service/dispatch/dispatch.h"
#include "service/lane/lane.h"
#include "service/mapping/mapper.h"
#include "service/watch/watch.h"
#include "tests/support/client_end.h"
#include "tests/support/device_loopback.h"
#include "tests/support/loopback/loopback_transport.h"
#include "tests/support/observed_transport.h"
#include "tests/support/recording.h"

namespace headrace::support {

using MakeTransport = std::function<std::unique_ptr<transport::Transport>(transport::Waker& waker)>;

// Loopback with the given behaviour.
MakeTransport Loopback(const transport::LoopbackOptions& options);
// The real transport of a node.
MakeTransport SharedMemory(std::uint32_t threads);

struct JobSpec {
  JobId id{1};
  std::string name = "job";
  std::uint32_t world_size = 2;
  std::uint32_t timeout_ms = 60'000;
  std::string rendezvous{};  // not empty: its ranks are on several nodes
  std::uint32_t uid = 0;
  std::uint32_t epoch = 1;
};

// Between dispatch and watch, and dispatch and mapping: keeps what a test asks about and passes the
// rest on. Sessions are really discarded, so a later access to their memory ends the test.
class WatchTap final : public service::InboxWriter<service::WatchMessage>,
                       public service::InboxWriter<service::MappingMessage> {
 public:
  // `on_discard` is called with memory that is about to be unmapped,
  using OnDiscard = std::function<void(std::span<const std::byte> memory)>;
  explicit WatchTap(OnDiscard on_discard) : on_discard_(std::move(on_discard)) {}
  [[nodiscard]] bool Send(service::WatchMessage&& message) override;
  [[nodiscard]] bool Send(service::MappingMessage&& message) override;
  void Connect(service::InboxWriter<service::WatchMessage>& watch,
               service::InboxWriter<service::MappingMessage>& mapping) {
    watch_ = &watch;
    mapping_ = &mapping;
  }

  std::vector<SessionId> discarded;
  std::size_t mappings_discarded = 0;
  std::vector<std::string> events;
  std::vector<std::optional<std::uint32_t>> event_uids;  // whose doing each event is
  bool full = false;  // answers as an inbox that is too far behind

 private:
  service::InboxWriter<service::WatchMessage>* watch_ = nullptr;
  service::InboxWriter<service::MappingMessage>* mapping_ = nullptr;
  OnDiscard on_discard_;
};

class HandDrivenNode {
 public:
  explicit HandDrivenNode(const MakeTransport& make = Loopback({}),
                          std::uint64_t credit_bytes = std::uint64_t{1} << 20,
                          const std::vector<transport::NetworkTransport*>& networks = {},
                          const transport::Gpus* gpus = nullptr);

  // ---- what control does ----
  // Attaches a rank and hands over one segment (number 0) of `segment_size` bytes, if not 0.
  ClientEnd& Attach(const JobSpec& job, std::uint32_t rank, std::size_t segment_size = 65536);
  SegmentId AddSegment(ClientEnd& client, std::size_t size);
  // The same with a segment of a GPU's memory; the node was given GPUs.
  ClientEnd& AttachOnGpu(const JobSpec& job, std::uint32_t rank, int device,
                         std::size_t segment_size = 65536);
  SegmentId AddDeviceSegment(ClientEnd& client, int device, std::size_t size);
  void AddTensor(ClientEnd& client, TensorId id, const service::Tensor& tensor);
  void Close(ClientEnd& client, bool orderly, const std::string& cause);
  void Send(service::DispatchMessage message);
  // To each lane between nodes, of which there are as many as networks were given, or to one.
  void SendToNetworkLanes(const service::LaneMessage& message);
  void SendToNetworkLane(std::size_t rail, service::LaneMessage message);
  std::size_t network_lanes_count() const { return network_lanes_.size(); }

  // ---- time ----
  TimeNs now = kSecond;
  bool TurnDispatch() { return dispatch_.DoWork(now); }
  bool TurnLane() { return lane_.DoWork(now); }
  bool TurnGpuLane() { return gpu_lane_ && gpu_lane_->DoWork(now); }
  bool TurnNetworkLanes();
  // Both that do what dispatch does not wait for.
  bool TurnWatch() {
    const bool watched = watch_.DoWork(now);
    return mapper_.DoWork(now) || watched;
  }
  // Turns all actors until none has anything to do at this time. Returns whether any had.
  bool Settle();
  void Advance(TimeNs time_ns);
  // The same of a service that is stopped meanwhile: nobody has a turn before the time is over.
  void Stall(TimeNs time_ns);

  // ---- what there is to see ----
  service::Dispatch& dispatch() { return dispatch_; }
  // It books scratch memory for GPUs as rpc would, for a user who may have that many bytes more.
  RecordingInbox<service::RpcMessage>& rpc() { return rpc_; }
  void LimitScratch(std::uint64_t bytes) { scratch_left_ = bytes; }
  RecordingInbox<service::PeersMessage>& peers() { return peers_; }
  WatchTap& watch_tap() { return watch_tap_; }
  ObservedTransport& transport() { return transport_; }
  // The transport of the lane between GPUs, and what it was given; only if there are GPUs.
  DeviceLoopback& gpu_transport() { return *gpu_loopback_; }
  ObservedTransport& observed_gpu_transport() { return *gpu_transport_; }
  bool has_gpus() const { return gpus_ != nullptr; }
  // Whether an open transfer of a lane inside the node may touch any of these bytes.
  bool Uses(std::span<const std::byte> memory) const;
  RecordingDoorbells& doorbells() { return doorbells_; }
  // Whether the service has discarded the memory of that session.
  bool Discarded(const ClientEnd& client) const;
  // Times memory was discarded while a transfer could still touch it: must stay 0.
  std::size_t discarded_in_use() const { return discarded_in_use_; }
  // The service's view of a session's segment; empty when it has been discarded.
  std::span<const std::byte> ServiceMemory(const ClientEnd& client, std::uint32_t segment) const;

  const ipc::BoardLayout& board() const { return *board_; }
  ipc::CountersRow Counters() const { return *ipc::ReadRow(board_->counters); }
  ipc::LaneRow LaneRow(std::size_t lane = 0) const { return *ipc::ReadRow(board_->lanes[lane]); }
  std::optional<ipc::JobRow> JobRow(JobId job) const;
  std::optional<ipc::RankRow> RankRow(JobId job, std::uint32_t rank) const;
  std::optional<ipc::QueueRow> QueueRow(JobId job, std::uint64_t block) const;
  std::optional<ipc::PlanRow> PlanRow(JobId job) const;
  // Rows in use in the tables of jobs, ranks, queue, plans and their blocks.
  std::size_t RowsInUse() const;

 private:
  void OnDiscard(std::span<const std::byte> memory);
  void Book(const service::BookScratch& message);

  std::unique_ptr<ipc::BoardLayout> board_;
  CountingWakeable wakeable_;
  RecordingDoorbells doorbells_;
  RecordingInbox<service::RpcMessage> rpc_;
  RecordingInbox<service::PeersMessage> peers_;
  WatchTap watch_tap_;
  service::Watch watch_;
  service::Mapper mapper_;
  service::LaneWaker waker_;
  ObservedTransport transport_;
  service::Dispatch dispatch_;
  service::Lane lane_;
  const transport::Gpus* gpus_;
  DeviceLoopback* gpu_loopback_ = nullptr;  // in the next
  std::unique_ptr<ObservedTransport> gpu_transport_;
  std::unique_ptr<service::Lane> gpu_lane_;
  std::vector<std::unique_ptr<service::Lane>> network_lanes_;
  std::uint64_t sessions_ = 0;
  std::uint64_t scratch_left_ = UINT64_MAX;
  std::vector<std::unique_ptr<ClientEnd>> clients_;
  std::map<SessionId, std::vector<std::span<const std::byte>>> service_memory_;
  std::size_t discarded_in_use_ = 0;
};

}  // namespace headrace::support
