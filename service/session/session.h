// One attached rank: who it is, its channel, the memory it handed over and the tensors in it.
//
// Built by rpc when a rank attaches, owned by dispatch while the lease lasts, destroyed by mapping
// when no lane uses its memory any more. Only its present owner touches it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ipc/base/architecture.h"
#include "ipc/base/clock.h"
#include "ipc/base/collective.h"
#include "ipc/base/fd.h"
#include "ipc/base/ids.h"
#include "ipc/base/result.h"
#include "ipc/base/steering.h"
#include "ipc/channel.h"
#include "ipc/completion.h"
#include "ipc/ring_reader.h"
#include "service/session/layout.h"
#include "service/session/segment_memory.h"
#include "service/session/slow_rank.h"

namespace headrace::service {

// Limits of one session; rpc refuses what goes beyond.
inline constexpr std::size_t kSegmentsMax = 256;
inline constexpr std::size_t kTensorsMax = std::size_t{1} << 18;
// An epoch of a job that nobody can have counted up to, and to which one can still be added.
inline constexpr std::uint32_t kEpochMax = std::uint32_t{1} << 31;
// A rank may come after this epoch, so that the epoch that it begins is one, too.
inline constexpr std::uint32_t kAfterEpochMax = kEpochMax - 2;

// A registered gradient: a range of a segment.
struct Tensor {
  std::string name;
  SegmentId segment;
  std::uint64_t offset = 0;  // bytes from the start of the segment
  std::uint64_t count = 0;   // elements
  DType dtype = DType::kUInt8;
  std::uint32_t order = 0;  // place in forward order

  std::uint64_t Bytes() const { return count * SizeOf(dtype); }
};

// Who attached, as rpc established it.
struct SessionIdentity {
  SessionId id;
  JobId job;
  std::string job_name;
  std::uint32_t epoch = 1;
  std::uint32_t after_epoch = 0;  // in which the rank was before; 0: it begins
  std::uint32_t rank = 0;
  std::uint32_t member = 0;        // quorum.h
  std::uint64_t members_hash = 0;  // HashOf all members, by rank; 0: each is what its rank says
  std::uint32_t world_size = 1;
  std::uint32_t uid = 0;
  std::int32_t pid = 0;
  bool pid_is_known = false;     // by the kernel, and not only said by the client
  std::uint32_t timeout_ms = 0;  // default of its operations; never 0 once attached
  // Where the nodes of the job meet, "host" or "host:port"; empty when all ranks are on this node.
  std::string rendezvous{};
  std::string rendezvous_from{};  // where the client has that from, for people; empty: unknown
  bool can_reconnect = false;     // it comes back by itself when its service ends
  std::optional<Architecture>
      architecture{};  // who sums a job of several nodes; none: as its leader has it
  std::optional<SendsClass> sends_class{};  // that rank 0 asks for
  SlowBound slow_bound{};                   // likewise
  std::uint32_t min_world = 0;  // likewise: with how many it may go on; 0: with all of them only
  TimeNs attached_ns = 0;
};

class Session {
 public:
  Session(SessionIdentity identity, ipc::Channel channel, UniqueFd doorbell);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const SessionIdentity& identity() const { return identity_; }
  ipc::RingReader& reader() { return reader_; }
  ipc::CompletionWriter& completions() { return completions_; }
  // An eventfd the client writes to; edge-triggered in epoll, never read.
  int doorbell() const { return doorbell_.get(); }

  void AddSegment(SegmentId id, SegmentMemory memory);
  // The memory, for whoever unmaps it; empty when unknown.
  SegmentMemory RemoveSegment(SegmentId id);
  // All of it, for whoever ends the session.
  std::vector<SegmentMemory> RemoveSegments();
  // The segment's bytes, empty when unknown.
  std::span<std::byte> FindSegment(SegmentId id) const;
  // The GPU that they are on, or transport::kHost.
  std::int8_t DeviceOf(SegmentId id) const;
  std::uint64_t segment_bytes() const { return segment_bytes_; }
  // Whether any segment is of a GPU.
  bool HasDeviceMemory() const;
  // What is on one GPU, and in how many segments.
  struct DeviceUse {
    std::uint64_t bytes = 0;
    std::uint64_t segments = 0;
  };
  DeviceUse UseOf(std::int8_t device) const;

  // The channel's word of that record says that its memory is ready.
  bool IsReady(std::uint64_t record) const {
    // Pairs with the write by the client's GPU or by a call of its driver: what came before in the
    // stream is in memory by then.
    return channel_.layout().ready[record % ipc::kOperationsMax].load(std::memory_order_acquire) >=
           record;
  }

  // For how long the client's threads have waited for ends, as it says.
  std::uint64_t WaitedNs() const {
    return channel_.layout().header.client_waited_ns.load(std::memory_order_relaxed);
  }

  // Whether its process counts waits in other sessions here, and whether a thread is in one, as it
  // says.
  bool CountsElsewhere() const { return WaitsElsewhereWord() != 0; }
  bool WaitsElsewhere() const { return WaitsElsewhereWord() > 1; }

  void AddTensors(TensorId first, std::vector<Tensor> tensors);
  void RemoveTensors(TensorId first, std::uint32_t count);
  // Null when unknown.
  const Tensor* FindTensor(TensorId id) const;
  std::size_t tensors_count() const { return tensors_count_; }
  bool HasTensorsIn(SegmentId segment) const;

  // The rank's gradients: tensors first, first + 1, ... of this session, in forward order. Set
  // once.
  struct Gradients {
    std::shared_ptr<const Layout> layout;  // shared by rpc, peers and dispatch; all only read it
    TensorId first;
    SegmentId segment;
    std::byte* base = nullptr;  // the lowest of them
    std::int8_t device = transport::kHost;
    // What encodings leave out of the node's sums, where the job keeps it in this rank's memory, so
    // that it outlives the service; null: there is no room for it.
    std::byte* residuals = nullptr;
    std::optional<SegmentId> residuals_segment;  // of their own
    // Behind the residuals: room for right factors, and where each gradient's is.
    std::uint32_t factors_rank = 0;
    std::vector<std::uint64_t> factor_offsets;  // RightFactorOffsets
  };
  // Whether the segments are there and hold the whole layout, and room for its residuals.
  Status SetLayout(TensorId first, std::shared_ptr<const Layout> layout,
                   const ResidualsPlace& residuals = {});
  const Gradients* gradients() const { return gradients_ ? &*gradients_ : nullptr; }

 private:
  std::uint32_t WaitsElsewhereWord() const {
    return channel_.layout().header.client_waits_elsewhere.load(std::memory_order_relaxed);
  }
  SessionIdentity identity_;
  ipc::Channel channel_;
  UniqueFd doorbell_;
  ipc::RingReader reader_;
  ipc::CompletionWriter completions_;
  std::map<SegmentId, SegmentMemory> segments_;
  std::uint64_t segment_bytes_ = 0;
  std::vector<Tensor> tensors_;  // by id; a removed one has count 0 and no name
  std::size_t tensors_count_ = 0;
  std::optional<Gradients> gradients_;
};

}  // namespace headrace::service
