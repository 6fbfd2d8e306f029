// Connects the Unix socket to the service; the RPC connection is made on it.
#pragma once

#include <cstdint>
#include <string>

#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/base/result.h"

namespace headrace::client {

struct ServiceSocket {
  UniqueFd fd;
  std::int32_t pid = 0;  // of the process that listens; 0 when the kernel does not tell
};

// Connects within `timeout_ns`. Errors name the path and what to do: nothing there, nobody
// listening, no permission.
Result<ServiceSocket> ConnectToService(const std::string& path, TimeNs timeout_ns);

}  // namespace headrace::client
