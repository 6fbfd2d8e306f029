#include "service/control/outbox.h"

#include <kj/debug.h>
#include <spdlog/spdlog.h>

namespace headrace::service {
namespace {

constexpr auto kRetryDelay = 10 * kj::MILLISECONDS;

}  // namespace

void Outbox::Send(Message message) {
  if (waiting_.empty() && Try(message)) return;
  waiting_.push_back(std::move(message));
  if (waiting_.size() == 1) tasks_.add(Retry());
}

bool Outbox::Try(const Message& message) {
  if (const auto* lane = std::get_if<ToLane>(&message)) {
    return ports_.network_lanes[lane->lane].door->Send(lane->message);
  }
  if (const auto* dispatch = std::get_if<ToDispatch>(&message)) {
    return std::visit([this](const auto& each) { return ports_.dispatch.Send(each); },
                      dispatch->message);
  }
  return std::visit([this](const auto& each) { return ports_.watch.Send(each); },
                    std::get<ToWatch>(message).message);
}

kj::Promise<void> Outbox::Retry() {
  return timer_.afterDelay(kRetryDelay).then([this]() -> kj::Promise<void> {
    while (!waiting_.empty() && Try(waiting_.front())) waiting_.pop_front();
    if (waiting_.empty()) return kj::READY_NOW;
    return Retry();
  });
}

void Outbox::taskFailed(kj::Exception&& exception) {
  ports_.log.error("control: {}", kj::str(exception).cStr());
}

}  // namespace headrace::service
