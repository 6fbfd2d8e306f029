// What control has to tell other actors and cannot take back: it goes out in order, and what finds
// no room waits. How much can wait is bounded by the jobs and their ranks. Control's thread only.
#pragma once

#include <kj/async.h>
#include <kj/timer.h>

#include <deque>
#include <utility>
#include <variant>

#include "service/control/control.h"
#include "service/membership/outgoing.h"

namespace headrace::service {

class Outbox final : private kj::TaskSet::ErrorHandler {
 public:
  using Message = std::variant<ToDispatch, ToLane, ToWatch>;

  // Both outlive this.
  Outbox(const ControlPorts& ports, kj::Timer& timer)
      : ports_(ports), timer_(timer), tasks_(*this) {}

  void Send(Message message);

 private:
  bool Try(const Message& message);
  kj::Promise<void> Retry();
  void taskFailed(kj::Exception&& exception) override;

  const ControlPorts& ports_;
  kj::Timer& timer_;
  std::deque<Message> waiting_;
  kj::TaskSet tasks_;
};

}  // namespace headrace::service
