#include "service/rpc/supervision.h"

namespace headrace::service {

kj::Promise<void> Supervision::Feed() {
  if (!supervisor_.notify || supervisor_.patience_ns <= 0) return kj::READY_NOW;
  return probe_.Ask(Probe::Asker::kService)
      .then(
          [this](const ProbeAnswer& answer) {
            if (answer.Complaint().empty()) supervisor_.notify("WATCHDOG=1");
          },
          [](kj::Exception&& /*the service ends*/) {})
      .then([this] { return timer_.afterDelay(supervisor_.patience_ns / 2 * kj::NANOSECONDS); })
      .then([this] { return Feed(); });
}

void Supervision::NotifyStopping() const {
  if (supervisor_.notify) supervisor_.notify("STOPPING=1");
}

}  // namespace headrace::service
