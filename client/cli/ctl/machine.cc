#include "client/cli/ctl/machine.h"

#include <dlfcn.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <fstream>
#include <iterator>
#include <sstream>

#include "ipc/base/unique_handle.h"
#include "ipc/sealed_memory.h"

namespace headrace::ctl {
namespace {

struct LibraryTraits {
  using Value = void*;
  static Value None() { return nullptr; }
  static void Release(Value library) { ::dlclose(library); }
};
using Library = UniqueHandle<LibraryTraits>;

Library OpenLibrary(const char* name) { return Library(::dlopen(name, RTLD_NOW | RTLD_LOCAL)); }

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

FileLook LookAtFile(const std::string& path) {
  struct stat state {};
  if (::stat(path.c_str(), &state) != 0) return {};
  return {.exists = true,
          .is_socket = S_ISSOCK(state.st_mode),
          .mode = state.st_mode & 07777U,
          .uid = state.st_uid,
          .may_write = ::access(path.c_str(), W_OK) == 0};
}

Status TryMemfd() {
  Result<ipc::SealedMemory> memory =
      ipc::CreateSealedMemory("headrace-doctor", 16 * ipc::kPageSize);
  if (!memory) return memory.error();
  return ipc::VerifySealedMemory(memory->fd.get(), memory->mapping.size());
}

Limits LookAtLimits(std::int32_t service_pid) {
  const std::string pid = service_pid > 0 ? std::to_string(service_pid) : "self";
  const std::string text = ReadFile("/proc/" + pid + "/limits");
  // The limits of another user's process cannot be read; then this shell's are the best guess.
  if (text.empty() && service_pid > 0) return LookAtLimits(0);
  return {.of = service_pid > 0 ? "the service" : "this shell",
          .locked_bytes = ParseLimit(text, "Max locked memory").value_or(0),
          .open_files = ParseLimit(text, "Max open files").value_or(0)};
}

std::uint32_t CoresAllowed() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return 0;
  return static_cast<std::uint32_t>(CPU_COUNT(&set));
}

void LookForCuda(Machine& machine) {
  const Library cuda = OpenLibrary("libcuda.so.1");
  if (!cuda) {
    machine.cuda_error = "libcuda.so.1 is not installed";
    return;
  }
  // The two functions of the driver API that need no context; CUresult is an int, 0 is success.
  using Initialise = int (*)(unsigned);
  using GetVersion = int (*)(int*);
  const auto initialise = reinterpret_cast<Initialise>(::dlsym(cuda.get(), "cuInit"));
  const auto get_version = reinterpret_cast<GetVersion>(::dlsym(cuda.get(), "cuDriverGetVersion"));
  int version = 0;
  if (initialise == nullptr || get_version == nullptr) {
    machine.cuda_error = "libcuda.so.1 lacks cuInit or cuDriverGetVersion";
  } else if (const int error = initialise(0); error != 0) {
    machine.cuda_error = "cuInit gives CUresult " + std::to_string(error);
  } else if (get_version(&version) == 0) {
    machine.cuda_driver_version = version;
  } else {
    machine.cuda_error = "cuDriverGetVersion failed";
  }
}

}  // namespace

std::string ChosenWord(const std::string& text) {
  const std::size_t begin = text.find('[');
  const std::size_t end = text.find(']');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return "";
  return text.substr(begin + 1, end - begin - 1);
}

std::optional<std::uint64_t> ParseLimit(const std::string& text, const std::string& name) {
  const std::size_t line = text.find(name);
  if (line == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(line + name.size()));
  std::string soft;
  fields >> soft;
  if (soft == "unlimited") return kUnlimited;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(soft.data(), soft.data() + soft.size(), value);
  if (error != std::errc() || end != soft.data() + soft.size()) return std::nullopt;
  return value;
}

Machine LookAtMachine(const std::string& board_path, const std::string& socket_path,
                      std::int32_t service_pid) {
  Machine machine;
  machine.board = LookAtFile(board_path);
  machine.socket = LookAtFile(socket_path);
  machine.memfd = TryMemfd();
  machine.limits = LookAtLimits(service_pid);
  machine.cores = CoresAllowed();
  machine.shmem_huge_pages =
      ChosenWord(ReadFile("/sys/kernel/mm/transparent_hugepage/shmem_enabled"));
  LookForCuda(machine);
  machine.has_ucx = static_cast<bool>(OpenLibrary("libucp.so.0"));
  machine.has_nccl = static_cast<bool>(OpenLibrary("libnccl.so.2"));
  return machine;
}

}  // namespace headrace::ctl
