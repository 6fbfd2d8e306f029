// How long it takes to map another process's GPU memory, and to let it go: a child allocates an
// arena and hands it over, this process maps it for all GPUs again and again.
//
// usage: import_bench [MIB [ROUNDS]]
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "tests/gpu/figures.h"
#include "transport/memory/device_arena.h"
#include "transport/memory/gpus.h"

namespace headrace::gpu {
namespace {

std::string Library() {
  const char* const named = std::getenv("HEADRACE_CUDA_LIBRARY");
  return named != nullptr ? named : std::string(transport::kCudaLibrary);
}

bool SendGrant(int socket, const transport::DeviceGrant& grant) {
  DeviceHandle handle = grant.handle;
  iovec bytes{&handle, sizeof handle};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof space;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = grant.fds.front().get();
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  return sendmsg(socket, &message, 0) == static_cast<ssize_t>(sizeof handle);
}

bool ReceiveGrant(int socket, transport::DeviceGrant& grant) {
  iovec bytes{&grant.handle, sizeof grant.handle};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof space;
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(sizeof grant.handle)) {
    return false;
  }
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_len != CMSG_LEN(sizeof(int))) return false;
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  grant.fds.emplace_back(fd);
  return true;
}

// The child: holds the arena until the socket ends.
int Hold(int socket, std::uint64_t size) {
  const auto driver = transport::CudaDriver::Open(Library());
  if (!driver) return 1;
  const auto arena = transport::DeviceArena::Allocate(**driver, 0, size);
  const auto grant = arena ? arena->Grant() : arena.error();
  if (!grant) {
    fmt::print(stderr, "import_bench: {}\n", grant.error().text());
    return 1;
  }
  char end = 0;
  return SendGrant(socket, *grant) && read(socket, &end, 1) == 0 ? 0 : 1;
}

int Measure(int socket, std::uint64_t size, int rounds) {
  const auto gpus = transport::Gpus::Open(Library());
  if (!gpus) return Skip(gpus.error().text());
  transport::DeviceGrant grant;
  if (!ReceiveGrant(socket, grant)) return 1;
  std::vector<double> maps_ms;
  std::vector<double> unmaps_ms;
  for (int round = 0; round < rounds; ++round) {
    const TimeNs begin = MonotonicNow();
    auto import = (*gpus)->Import(grant.handle, grant.fds);
    const TimeNs mapped = MonotonicNow();
    if (!import) {
      fmt::print(stderr, "import_bench: {}\n", import.error().text());
      return 1;
    }
    { const transport::DeviceImport gone = std::move(import).value(); }
    maps_ms.push_back(static_cast<double>(mapped - begin) / 1e6);
    unmaps_ms.push_back(static_cast<double>(MonotonicNow() - mapped) / 1e6);
  }
  const std::string what = fmt::format("of {} MiB of {}", size >> 20, (*gpus)->devices()[0].name);
  PrintFigure("import " + what, Median(maps_ms), "ms", size >> 20 == 2048 ? "< 2" : "");
  PrintFigure("release " + what, Median(unmaps_ms), "ms", "");
  return 0;
}

int Main(std::uint64_t mib, int rounds) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) return 1;
  // Before either end has a driver: one does not survive a fork.
  const pid_t child = fork();
  if (child < 0) return 1;
  if (child == 0) {
    close(sockets[0]);
    _exit(Hold(sockets[1], mib << 20));
  }
  close(sockets[1]);
  const int status = Measure(sockets[0], mib << 20, rounds);
  close(sockets[0]);
  waitpid(child, nullptr, 0);
  return status;
}

}  // namespace
}  // namespace headrace::gpu

int main(int argc, char** argv) {
  const long mib = argc > 1 ? std::atol(argv[1]) : 2048;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 21;
  if (argc > 3 || mib < 1 || rounds < 1) {
    fmt::print(stderr, "usage: import_bench [MIB [ROUNDS]]\n");
    return 2;
  }
  return headrace::gpu::Main(static_cast<std::uint64_t>(mib), rounds);
}
