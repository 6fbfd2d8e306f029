// What an event loop has to tell other actors and cannot take back: it goes out in order, and what
// finds no room waits. How much can wait is bounded by the jobs and their ranks. The loop's thread
// only.
#pragma once

#include <kj/async.h>
#include <kj/timer.h>

#include <deque>
#include <functional>
#include <utility>

#include "service/actor/inbox.h"

namespace spdlog {
class logger;
}

namespace headrace::service {

class Outbox final : private kj::TaskSet::ErrorHandler {
 public:
  // Both outlive this, and so do all doors.
  Outbox(spdlog::logger& log, kj::Timer& timer) : log_(log), timer_(timer), tasks_(*this) {}

  // `message` is one of the door's kinds, and can be copied.
  template <typename Message, typename Kind>
  void Send(Door<Message>& door, Kind message) {
    if (waiting_.empty() && door.Send(Message(message))) return;
    Keep([&door, message = std::move(message)] { return door.Send(Message(message)); });
  }

  // Whether nothing waits; what is sent beside the outbox would then overtake nothing.
  bool empty() const { return waiting_.empty(); }

 private:
  void Keep(std::function<bool()> attempt);
  kj::Promise<void> Retry();
  void taskFailed(kj::Exception&& exception) override;

  spdlog::logger& log_;
  kj::Timer& timer_;
  std::deque<std::function<bool()>> waiting_;
  kj::TaskSet tasks_;
};

}  // namespace headrace::service
