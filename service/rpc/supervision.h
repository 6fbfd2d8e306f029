// Notifies the supervisor of the service, such as systemd, of its state, in systemd's protocol:
// that it is stopping, and, if the supervisor has a watchdog, periodically that it works. The rpc
// thread only.
#pragma once

#include <kj/async.h>
#include <kj/timer.h>

#include <utility>

#include "service/rpc/control_options.h"
#include "service/rpc/probe.h"

namespace headrace::service {

class Supervision {
 public:
  // Both outlive this.
  Supervision(Supervisor supervisor, Probe& probe, kj::Timer& timer)
      : supervisor_(std::move(supervisor)), probe_(probe), timer_(timer) {}

  // Twice within each period that the supervisor waits, and only when every thread that a
  // client depends on has answered: one that hangs lets the supervisor's patience run out. Ends at
  // once when nobody waits.
  kj::Promise<void> Feed();

  void NotifyStopping() const;

 private:
  Supervisor supervisor_;
  Probe& probe_;
  kj::Timer& timer_;
};

}  // namespace headrace::service
