#include "service/rpc/client_process.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace headrace::service {
namespace {

// PF_EXITING of the kernel's task flags, set before a dying process closes its files.
constexpr std::uint64_t kExitingFlag = 0x4;

struct ProcessState {
  char state = 0;
  std::uint64_t flags = 0;
  std::uint64_t started_ticks = 0;
};

// From /proc/PID/stat, whose fields proc(5) numbers from 1; nothing when there is no such process.
std::optional<ProcessState> ReadState(std::int32_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  // The second field is the name in parentheses, and may hold blanks and parentheses itself.
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 1));
  ProcessState state;
  std::string skipped;
  fields >> state.state;
  for (int field = 4; field < 9; ++field) fields >> skipped;
  fields >> state.flags;
  for (int field = 10; field < 22; ++field) fields >> skipped;
  fields >> state.started_ticks;
  return fields ? std::optional(state) : std::nullopt;
}

}  // namespace

Result<ClientProcess> ClientProcessOf(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return SystemError("getsockopt SO_PEERCRED", errno);
  }
  ClientProcess process{.uid = credentials.uid, .pid = credentials.pid, .started_ticks = 0};
  if (const auto state = ReadState(process.pid)) process.started_ticks = state->started_ticks;
  return process;
}

bool HasExited(const ClientProcess& process) {
  if (process.pid <= 0) return false;
  const std::optional<ProcessState> state = ReadState(process.pid);
  if (!state || state->started_ticks != process.started_ticks) return true;
  return state->state == 'Z' || state->state == 'X' || (state->flags & kExitingFlag) != 0;
}

Status CheckDoorbell(int fd) {
  std::array<char, 64> target{};
  const std::string link = fmt::format("/proc/self/fd/{}", fd);
  const ssize_t size = ::readlink(link.c_str(), target.data(), target.size());
  if (size < 0) return SystemError("readlink " + link, errno);
  const std::string_view kind(target.data(), static_cast<std::size_t>(size));
  if (kind == "anon_inode:[eventfd]") return {};
  return Error(
      Code::kInvalidArgument,
      fmt::format("the doorbell is \"{}\", not an eventfd: create it with eventfd(2)", kind));
}

}  // namespace headrace::service
