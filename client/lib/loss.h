// What every call says once the service is lost.
#pragma once

#include <string>

#include "ipc/base/clock.h"
#include "ipc/base/error.h"

namespace headrace::client {

// It has been silent for too long.
Error StandstillOf(const std::string& service, TimeNs silent_ns);

// Its socket is closed. `stops`: it had said that it would stop, as it was asked to.
Error LossOf(const std::string& service, bool stops);

}  // namespace headrace::client
