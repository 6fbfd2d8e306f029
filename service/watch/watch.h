// The actor for what may take long or touches files: mapping and unmapping segments, the log, the
// board's events, making plans. Nothing on the data path waits for it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ipc/board.h"
#include "service/actor/actor.h"
#include "service/actor/messages.h"

namespace headrace::service {

// Where events go besides the board; the daemon gives the log.
using EventSink = std::function<void(const Event&)>;

class Watch final : public Actor {
 public:
  Watch(Wakeable& thread, Door<ControlMessage>& control, ipc::BoardLayout& board, EventSink log);

  std::string_view name() const override { return "watch"; }
  // Unlike other actors' this may take as long as mapping a segment takes.
  bool DoWork(TimeNs now) override;
  bool PrepareToSleep() override { return inbox_.Empty(); }
  void Awake() override {}
  TimeNs NextDeadline() const override { return kNever; }

  Door<WatchMessage>& door() { return inbox_; }

 private:
  void Handle(MapSegment message);
  void Handle(DiscardSession message);
  void Handle(DiscardMapping message);
  void Handle(const Event& event);
  void Handle(const MakePlan& message);

  Door<ControlMessage>& control_;
  ipc::BoardLayout& board_;
  EventSink log_;
  Inbox<WatchMessage> inbox_;
  std::vector<WatchMessage> messages_;
  std::uint64_t events_ = 0;
  std::size_t segments_mapped_ = 0;
};

}  // namespace headrace::service
