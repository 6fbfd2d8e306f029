// The actor for output and slow work: the log, the board's events, making plans. Nothing on the
// data path waits for it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "ipc/board.h"
#include "service/actor/actor.h"
#include "service/actor/outgoing.h"
#include "service/actor/request.h"
#include "service/peers/messages.h"
#include "service/rpc/messages.h"
#include "service/watch/event_limits.h"
#include "service/watch/messages.h"

namespace headrace::service {

// The share of time for plans of jobs that have one already: the rest is left to events
// and first plans, however short a job's iterations are.
inline constexpr int kReplanningShare = 5;  // one part in so many

// Where events go besides the board; the daemon gives the log.
using EventSink = std::function<void(const Event&)>;

class Watch final : public Actor {
 public:
  Watch(Wakeable& thread, InboxWriter<RpcMessage>& rpc, InboxWriter<PeersMessage>& peers,
        ipc::BoardLayout& board, EventSink log);

  std::string_view name() const override { return "watch"; }
  // Unlike other actors' this may take as long as making a plan takes.
  bool DoWork(TimeNs now) override;
  bool PrepareToSleep() override { return inbox_.Empty(); }
  void Awake() override {}
  TimeNs NextDeadline() const override {
    const TimeNs replan_ns = replans_.empty() ? kNever : replan_from_ns_;
    return std::min({event_limits_.next_deadline(), peers_.NextDeadline(), replan_ns});
  }

  InboxWriter<WatchMessage>& inbox() { return inbox_; }

 private:
  void Handle(const Event& event);
  void Show(const Event& event);
  void Handle(MakePlan message);
  bool Replan(TimeNs now);
  void Handle(const Ping& message);

  Outgoing<RpcMessage> rpc_;
  Outgoing<PeersMessage> peers_;
  ipc::BoardLayout& board_;
  EventSink log_;
  EventLimits event_limits_;
  Inbox<WatchMessage> inbox_;
  std::vector<WatchMessage> messages_;
  TimeNs now_ = 0;
  std::uint64_t events_ = 0;
  std::deque<MakePlan> replans_;           // that wait, one a job
  std::optional<TimeNs> replan_begun_ns_;  // of the last turn's
  TimeNs replan_from_ns_ = 0;              // when the next one may begin
};

}  // namespace headrace::service
