// The actor for what people see and what may take long: the log, the board's events, making plans.
// Nothing on the data path waits for it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
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
    return std::min(event_limits_.next_deadline(), peers_.NextDeadline());
  }

  InboxWriter<WatchMessage>& inbox() { return inbox_; }

 private:
  void Handle(const Event& event);
  void Show(const Event& event);
  void Handle(const MakePlan& message);
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
};

}  // namespace headrace::service
