#include "service/loop/outbox.h"

#include <kj/debug.h>
#include <spdlog/spdlog.h>

#include "ipc/base/check.h"
#include "service/loop/text.h"

namespace headrace::service {
namespace {

constexpr auto kRetryDelay = 10 * kj::MILLISECONDS;

}  // namespace

void Outbox::Keep(std::function<bool()> attempt) {
  waiting_.push_back(std::move(attempt));
  if (waiting_.size() == 1) tasks_.add(Retry());
}

kj::Promise<void> Outbox::Retry() {
  return timer_.afterDelay(kRetryDelay).then([this]() -> kj::Promise<void> {
    HR_CHECK(!waiting_.empty());
    while (!waiting_.empty() && waiting_.front()()) waiting_.pop_front();
    if (waiting_.empty()) return kj::READY_NOW;
    return Retry();
  });
}

void Outbox::taskFailed(kj::Exception&& exception) { log_.error("outbox: {}", CauseOf(exception)); }

}  // namespace headrace::service
