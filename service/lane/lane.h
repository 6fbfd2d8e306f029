// A lane: one transport, driven by one actor. Takes stages from its inbox, hands them to the
// transport in order, keeps those the transport is too busy for, reports each end to dispatch. A
// lane between nodes also opens, measures and closes the groups that peers asks for (groups.h). It
// reports which members a stage waits for, for how long bytes flowed, and whether the lane works
// (lane_probe.h).
//
// Shares dispatch's thread or has its own (config dedicated_lanes, lanes between nodes); the code
// is the same, and works under the lock of its ActorSet.
#pragma once

#include <algorithm>
#include <atomic>
#include <boost/circular_buffer.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "service/actor/actor.h"
#include "service/actor/outgoing.h"
#include "service/dispatch/messages.h"
#include "service/lane/groups.h"
#include "service/lane/lane_probe.h"
#include "service/lane/messages.h"
#include "service/peers/messages.h"
#include "transport/transport.h"

namespace headrace::service {

// Wakes the thread that drives a lane when the transport's own threads have finished something.
class LaneWaker final : public transport::Waker {
 public:
  explicit LaneWaker(Wakeable& thread) : thread_(thread) {}
  void Wake() override {
    signalled_.store(true);  // seq_cst: pairs with ConsumeSignal in PrepareToSleep
    thread_.Wake();
  }
  bool ConsumeSignal() { return signalled_.exchange(false); }

 private:
  Wakeable& thread_;
  std::atomic<bool> signalled_ = false;
};

class Lane final : public Actor {
 public:
  Lane(std::uint8_t index, std::string name, transport::Transport& transport, LaneWaker& waker,
       Wakeable& thread, InboxWriter<DispatchMessage>& dispatch);
  // Between nodes. Peers' inbox outlives the lane.
  Lane(std::uint8_t index, std::string name, transport::NetworkTransport& transport,
       LaneWaker& waker, Wakeable& thread, InboxWriter<DispatchMessage>& dispatch,
       InboxWriter<PeersMessage>& peers);

  std::string_view name() const override { return name_; }
  bool DoWork(TimeNs now) override { return Turn(now, Messages::kAll); }
  bool DoShortWork(TimeNs now) override { return Turn(now, Messages::kShort); }
  bool PrepareToSleep() override {
    return next_message_ == messages_.size() && inbox_.Empty() && !waker_.ConsumeSignal() &&
           transport_.PrepareToSleep();
  }
  void Awake() override {}
  TimeNs NextDeadline() const override {
    return std::min({transport_.NextLook(), dispatch_.NextDeadline(),
                     groups_ ? groups_->NextDeadline() : kNever});
  }

  Inbox<LaneMessage>& inbox() { return inbox_; }

 private:
  // Groups are opened and measured with memory that the kernel must find first: that takes
  // milliseconds.
  enum class Messages : std::uint8_t { kAll, kShort };

  Lane(std::uint8_t index, std::string name, transport::Transport& transport, LaneWaker& waker,
       Wakeable& thread, InboxWriter<DispatchMessage>& dispatch, LaneProbe::Way probe_way);

  bool Turn(TimeNs now, Messages which);
  bool HandleInbox(Messages which);
  void Handle(LaneMessage message);
  void PostHeld(TimeNs now);
  void Cancel(std::uint64_t token);
  void Answer(DispatchMessage message);
  void Report(const transport::Completion& completion);

  std::uint8_t index_;
  std::string name_;
  transport::Transport& transport_;
  LaneWaker& waker_;
  Outgoing<DispatchMessage> dispatch_;
  Inbox<LaneMessage> inbox_;
  std::vector<LaneMessage> messages_;
  std::size_t next_message_ = 0;                      // of these that is to be handled
  boost::circular_buffer<transport::Transfer> held_;  // accepted from dispatch, not yet posted
  std::vector<transport::Completion> completions_;
  std::uint64_t open_count_ = 0;  // stages that dispatch was not sent the end of
  LaneProbe probe_;
  std::optional<Groups> groups_;  // of a lane between nodes
};

}  // namespace headrace::service
