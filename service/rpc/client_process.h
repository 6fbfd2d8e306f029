// The process at the other end of an accepted socket, as the kernel reports it, and whether it
// still lives.
#pragma once

#include <cstdint>

#include "ipc/base/result.h"

namespace headrace::service {

struct ClientProcess {
  std::uint32_t uid = 0;
  std::int32_t pid = 0;             // 0: in a pid namespace this one cannot see
  std::uint64_t started_ticks = 0;  // since boot; tells a pid that was used again
};

// The process that called connect() on the other end of a unix socket.
Result<ClientProcess> ClientProcessOf(int socket);

// Whether the process has exited or is on its way out (a dying process closes its sockets some time
// before it becomes a zombie). False when the pid is unknown.
bool HasExited(const ClientProcess& process);

// Checks that `fd` is an eventfd: a doorbell must be edge-triggerable and free of a file system.
Status CheckDoorbell(int fd);

}  // namespace headrace::service
