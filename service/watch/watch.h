// The actor for what may take long or touches files: mapping and unmapping segments, the log, the
// board's events, making plans. Nothing on the data path waits for it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ipc/board.h"
#include "service/actor/actor.h"
#include "service/actor/messages.h"
#include "service/watch/gpu_rows.h"
#include "transport/memory/gpus.h"

namespace headrace::service {

// Where events go besides the board; the daemon gives the log.
using EventSink = std::function<void(const Event&)>;

class Watch final : public Actor {
 public:
  // `gpus`, where there are some, map clients' memory; they outlive watch.
  Watch(Wakeable& thread, Door<ControlMessage>& control, ipc::BoardLayout& board, EventSink log,
        const transport::Gpus* gpus = nullptr);

  // Before the first work: who is answered when scratch is made.
  void ConnectDispatch(Door<DispatchMessage>& dispatch) { dispatch_ = &dispatch; }

  std::string_view name() const override { return "watch"; }
  // Unlike other actors' this may take as long as mapping a segment takes.
  bool DoWork(TimeNs now) override;
  bool PrepareToSleep() override { return inbox_.Empty(); }
  void Awake() override {}
  TimeNs NextDeadline() const override { return kNever; }

  Door<WatchMessage>& door() { return inbox_; }

 private:
  void Handle(MapSegment message);
  void Handle(MapDeviceSegment message);
  void Handle(DiscardSession message);
  void Handle(DiscardMemory message);
  void Handle(const MakeScratch& message);
  void Handle(DiscardScratch message);
  void Handle(const Event& event);
  void Handle(const MakePlan& message);

  Result<SegmentMemory> Import(const MapDeviceSegment& message);
  void FillScratch(const MakeScratch& message, ScratchMade& made) const;

  Door<ControlMessage>& control_;
  ipc::BoardLayout& board_;
  GpuRows gpu_rows_;
  const transport::Gpus* gpus_;
  Door<DispatchMessage>* dispatch_ = nullptr;
  EventSink log_;
  Inbox<WatchMessage> inbox_;
  std::vector<WatchMessage> messages_;
  std::uint64_t events_ = 0;
  std::size_t segments_mapped_ = 0;
};

}  // namespace headrace::service
