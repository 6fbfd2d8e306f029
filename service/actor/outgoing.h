// The messages of one actor to another, in order. A message that finds no room in the other's inbox
// waits here and is sent again in later turns. So a full inbox, which clients can cause, delays
// messages and ends nothing.
//
// The sending actor's thread only. A sender of messages that must arrive documents what bounds
// their number; all other messages are sent so that they may be dropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "ipc/base/clock.h"
#include "service/actor/inbox.h"

namespace headrace::service {

template <typename Message>
class Outgoing {
 public:
  // How long an actor that has nothing else to do leaves a full inbox alone.
  static constexpr TimeNs kRetryAfter = kMillisecond;

  // The inbox outlives this.
  explicit Outgoing(InboxWriter<Message>& inbox) : inbox_(&inbox) {}

  // Arrives, after everything that was sent here before.
  void Send(Message message) {
    if (waiting_.empty() && inbox_->Send(std::move(message))) return;
    waiting_.push_back(std::move(message));
  }

  // Returns false, and counts it, when there is no room: the message is then dropped.
  bool TrySend(Message message) {
    if (waiting_.empty() && inbox_->Send(std::move(message))) return true;
    ++dropped_;
    return false;
  }

  // Once a turn: sends what waits, as far as there is room. Returns whether anything was sent.
  bool Flush(TimeNs now) {
    flushed_ns_ = now;
    bool sent = false;
    while (!waiting_.empty() && inbox_->Send(std::move(waiting_.front()))) {
      waiting_.pop_front();
      sent = true;
    }
    return sent;
  }
  // When to call Flush if nothing else happens.
  TimeNs NextDeadline() const { return waiting_.empty() ? kNever : flushed_ns_ + kRetryAfter; }

  std::size_t waiting() const { return waiting_.size(); }
  std::uint64_t dropped() const { return dropped_; }

 private:
  InboxWriter<Message>* inbox_;
  std::deque<Message> waiting_;
  TimeNs flushed_ns_ = 0;
  std::uint64_t dropped_ = 0;
};

}  // namespace headrace::service
