// The errors of all calls after the service was lost.
#pragma once

#include <string>

#include "ipc/base/clock.h"
#include "ipc/base/error.h"

namespace headrace::client {

// The service has not answered for too long.
Error StandstillOf(const std::string& service, TimeNs silent_ns);

// The service has closed the socket. `stops`: it had announced that it stops on request.
Error LossOf(const std::string& service, bool stops);

}  // namespace headrace::client
