// Wakes an actor's thread at the end of its sender's turn instead of with the first message. By
// then the sender's ActorSet may have run the receiver itself.
//
// The sender's turn only.
#pragma once

#include <utility>

#include "service/actor/inbox.h"

namespace headrace::service {

class LateWake final : public Wakeable {
 public:
  // Until Defer it wakes at once. The receiver's thread outlives this.
  explicit LateWake(Wakeable& receiver) : receiver_(receiver) {}

  void Wake() override {
    if (!deferred_) return receiver_.Wake();
    pending_ = true;
  }
  // From now on somebody asks Consume after each turn, and then wakes the receiver or runs it.
  void Defer() { deferred_ = true; }
  bool Consume() { return std::exchange(pending_, false); }

 private:
  Wakeable& receiver_;
  bool deferred_ = false;
  bool pending_ = false;
};

// A way into an inbox for one sender that wakes the receiver late.
template <typename Message>
class LateInbox final : public InboxWriter<Message> {
 public:
  // Both outlive this.
  LateInbox(Inbox<Message>& inbox, LateWake& wake) : inbox_(inbox), wake_(wake) {}

  [[nodiscard]] bool Send(Message&& message) override {
    if (!inbox_.Put(std::move(message))) return false;
    wake_.Wake();
    return true;
  }

 private:
  Inbox<Message>& inbox_;
  LateWake& wake_;
};

}  // namespace headrace::service
