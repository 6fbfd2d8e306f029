// The mapping actor: maps clients' memory, unmaps memory that is no longer used, makes scratch
// memory, and pins residuals for GPUs. Nothing on the data path waits for it; registrations do.
//
// It works in slices: memory of the host is mapped, pinned, unpinned and unmapped a few MiB at a
// time, and after each slice the next uid has its turn, and of one uid the next work. So a small
// registration is done within about a slice of each uid and work that is under way, however large
// those are. To map or make a GPU's memory is one slice, however long it takes. A slice that calls
// CUDA's driver waits for its turn (transport/memory/memory_gate.h), and host segments continue
// meanwhile.
//
// The service allocates no page of a client's segment: memory with holes is refused, and the rest
// is only mapped. A hole that a client punches later is filled at the first access, which may
// charge the service; that is bounded by the uid's quota (accounts/quotas.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ipc/board.h"
#include "service/actor/actor.h"
#include "service/actor/outgoing.h"
#include "service/actor/request.h"
#include "service/dispatch/messages.h"
#include "service/mapping/gpu_rows.h"
#include "service/mapping/messages.h"
#include "service/rpc/messages.h"
#include "transport/memory/gpus.h"

namespace headrace::service {

// A slice of the host's memory that takes a few milliseconds; scratch whose places are larger is
// pinned place by place, since a copy must not reach over two slices.
inline constexpr std::size_t kMappingSlice = std::size_t{16} << 20;
// Between two times of SegmentProgress for one segment.
inline constexpr TimeNs kProgressPeriod = 50 * kMillisecond;

class Mapper final : public Actor {
 public:
  // `gpus`, where there are some, map clients' memory. All references outlive the mapper.
  Mapper(Wakeable& thread, InboxWriter<RpcMessage>& rpc, ipc::BoardLayout& board,
         const transport::Gpus* gpus = nullptr);

  // Before the first work: who is answered when scratch is made.
  void ConnectDispatch(InboxWriter<DispatchMessage>& dispatch) { dispatch_.emplace(dispatch); }

  std::string_view name() const override { return "mapping"; }
  // One slice.
  bool DoWork(TimeNs now) override;
  bool PrepareToSleep() override { return inbox_.Empty() && IsIdle(); }
  void Awake() override {}
  TimeNs NextDeadline() const override {
    const TimeNs outgoing =
        std::min(rpc_.NextDeadline(), dispatch_ ? dispatch_->NextDeadline() : kNever);
    return std::min(outgoing, gpu_look_ns_);
  }

  InboxWriter<MappingMessage>& inbox() { return inbox_; }

  // Its thread has ended: unpins what lanes are about to free.
  void Release() {
    queues_.clear();
    stagings_.clear();
  }

 private:
  // A segment of the host that is being mapped.
  struct HostMapping {
    MapSegment request;
    Mapping mapping;  // empty before the first slice
    std::size_t filled = 0;
    TimeNs reported_ns = 0;
  };
  // Memory on its way out.
  struct Unmapping {
    SegmentMemory memory;
    std::int8_t device = transport::kHost;
    std::uint64_t size = 0;  // at first
  };
  // Memory that is unmapped once it is pinned no more.
  struct Unpinning {
    std::vector<SegmentMemory> memory;
    transport::PinnedRange pinned;
    std::uint32_t uid = 0;  // whose the memory is
  };
  struct ScratchMaking {
    MakeScratch request;
    std::optional<ScratchMemory> memory;  // as far as it is pinned
    std::string instead;                  // why it is not the GPU's
  };
  struct Pinning {
    std::variant<PinResiduals, PinStaging> request;
    std::span<std::byte> memory;
    transport::PinnedRange pinned;
    std::optional<Error> failure;  // why what is pinned goes again
  };
  struct StagingUnpinning {
    UnpinStaging request;
    transport::PinnedRange pinned;
  };
  // The staging of a group on a lane.
  struct Staging {
    transport::PinnedRange pinned;
    std::uint32_t uid = 0;
  };
  using Work = std::variant<HostMapping, Unmapping, MapDeviceSegment, ScratchMaking, DiscardScratch,
                            Pinning, StagingUnpinning, Unpinning>;

  void Handle(MapSegment message);
  void Handle(MapDeviceSegment message);
  void Handle(const CancelMapping& message);
  void Handle(DiscardSession message);
  void Handle(DiscardMemory message);
  void Handle(const MakeScratch& message);
  void Handle(const CancelScratch& message);
  void Handle(DiscardScratch message);
  void Handle(const PinResiduals& message);
  void Handle(const CancelPinning& message);
  void Handle(const PinStaging& message);
  void Handle(const UnpinStaging& message);
  void Handle(DiscardResiduals message);
  void Handle(const Ping& message);

  // Each does one slice, and returns whether nothing is left to do.
  bool DoSlice(HostMapping& work, TimeNs now);
  bool DoSlice(Unmapping& work, TimeNs now);
  bool DoSlice(MapDeviceSegment& work, TimeNs now);
  bool DoSlice(ScratchMaking& work, TimeNs now);
  bool DoSlice(DiscardScratch& work, TimeNs now);
  bool DoSlice(Pinning& work, TimeNs now);
  bool DoSlice(StagingUnpinning& work, TimeNs now);
  bool DoSlice(Unpinning& work, TimeNs now);

  // Whether it asks CUDA's driver.
  bool IsForGpus(const Work& work) const;
  // Whether all work there is waits for the GPUs' moment.
  bool IsIdle() const;
  // The next work by turns, of which a slice may be done now, out of its queue; none: nothing may.
  std::optional<Work> PopNext(TimeNs now);
  bool DoSliceOf(Work& work, TimeNs now);

  void Add(std::uint32_t uid, Work work) { queues_[uid].push_back(std::move(work)); }
  void Unmap(std::uint32_t uid, SegmentMemory memory);
  void Cancel(std::uint32_t uid, Work& work);
  // The first slice of a segment: checks and maps it, without its pages.
  Status Begin(HostMapping& work);
  void Answer(SegmentMapped answer);
  void Answer(const PinResiduals& request, Pinning& work);
  void Answer(const PinStaging& request, Pinning& work);
  Result<SegmentMemory> Import(const MapDeviceSegment& message);
  // One slice of it; whether it is made.
  Result<bool> MakeMore(ScratchMaking& work) const;

  Outgoing<RpcMessage> rpc_;
  GpuRows gpu_rows_;
  const transport::Gpus* gpus_;
  std::optional<Outgoing<DispatchMessage>> dispatch_;
  Inbox<MappingMessage> inbox_;
  std::vector<MappingMessage> messages_;
  // By uid, none of them empty; memory of the service's own stands with the user whose job it is
  // for.
  std::map<std::uint32_t, std::deque<Work>> queues_;
  std::map<std::pair<std::uint8_t, JobId>, Staging> stagings_;
  std::uint32_t last_uid_ = 0;                              // that had a turn
  std::optional<transport::MemoryGate::Caller> gpu_calls_;  // where there are GPUs
  TimeNs gpu_look_ns_ = kNever;  // when to ask again, while work for GPUs waits for its moment
  std::size_t segments_mapped_ = 0;
};

}  // namespace headrace::service
