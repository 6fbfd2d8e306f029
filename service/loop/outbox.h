// Messages of an event loop to other actors that must not be lost: they are sent in order, and
// those that find no room wait. The number of jobs and their ranks bounds how many can wait. The
// loop's thread only.
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
  // Both outlive this, and so do all inboxes.
  Outbox(spdlog::logger& log, kj::Timer& timer) : log_(log), timer_(timer), tasks_(*this) {}

  // `message` is one of the inbox's kinds, and can be copied.
  template <typename Message, typename Kind>
  void Send(InboxWriter<Message>& inbox, Kind message) {
    if (waiting_.empty() && inbox.Send(Message(message))) return;
    Keep([&inbox, message = std::move(message)] { return inbox.Send(Message(message)); });
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
