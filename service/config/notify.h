// Notifies systemd of the state of the service, where systemd started it and asked to be notified
// (Type=notify).
#pragma once

#include <string_view>

#include "ipc/base/clock.h"
#include "ipc/base/result.h"

namespace headrace::service {

// Sends `state` ("READY=1") to the socket that systemd named in NOTIFY_SOCKET. An error says that
// systemd will wait in vain, and why.
Status NotifySystemd(std::string_view path, std::string_view state);

// How long systemd waits for the next WATCHDOG=1, as WATCHDOG_USEC says it (WatchdogSec=). Refuses
// what is no count of microseconds, and more than a day.
Result<TimeNs> WatchdogPatience(std::string_view microseconds);

}  // namespace headrace::service
