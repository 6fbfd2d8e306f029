#include "client/cli/ctl/machine.h"

#include <sched.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "client/cli/ctl/libraries.h"
#include "client/cli/ctl/process.h"
#include "ipc/base/cgroup.h"
#include "ipc/sealed_memory.h"

namespace headrace::ctl {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

FileState InspectFile(const std::string& path) {
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

std::string ProcessFolder(std::int32_t pid) {
  return "/proc/" + (pid > 0 ? std::to_string(pid) : std::string("self"));
}

Limits ReadLimits(std::int32_t service_pid) {
  const std::string text = ReadFile(ProcessFolder(service_pid) + "/limits");
  // The limits of another user's process cannot be read; then this shell's are the best guess.
  if (text.empty() && service_pid > 0) return ReadLimits(0);
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

Threads ReadThreads(std::int32_t pid) {
  Threads threads;
  std::error_code ignored;  // a process that ends meanwhile has no threads
  std::filesystem::directory_iterator tasks(ProcessFolder(pid) + "/task", ignored);
  for (; tasks != std::filesystem::directory_iterator(); tasks.increment(ignored)) {
    const auto stat = ParseStat(ReadFile(tasks->path().string() + "/stat"));
    if (!stat) continue;
    ++threads.count;
    if (stat->state == 'T' || stat->state == 't') ++threads.stopped;
    if (stat->state == 'D') ++threads.uninterruptible;
  }
  return threads;
}

// The tightest quota on the way up.
std::optional<double> ReadCpuQuota(std::int32_t pid) {
  std::optional<double> least;
  for (const std::string& path :
       CgroupFiles(ReadFile(ProcessFolder(pid) + "/cgroup"), "", "cpu.max")) {
    const auto quota = ParseCpuMax(ReadFile(path));
    if (quota && (!least || *quota < *least)) least = quota;
  }
  return least;
}

void ReadSharedMemory(Machine& machine) {
  struct statvfs state {};
  if (::statvfs("/dev/shm", &state) != 0) return;
  machine.shm_bytes = std::uint64_t{state.f_blocks} * state.f_frsize;
  machine.shm_free_bytes = std::uint64_t{state.f_bavail} * state.f_frsize;
}

bool IsThere(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code ignored;  // no such folder: nothing is in it
  std::filesystem::directory_iterator entries(folder, ignored);
  for (; entries != std::filesystem::directory_iterator(); entries.increment(ignored)) {
    names.push_back(entries->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
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

std::optional<double> ParseCpuMax(const std::string& text) {
  std::istringstream fields(text);
  double quota = 0;
  double period = 0;
  if (!(fields >> quota >> period) || !(quota > 0) || !(period > 0)) return std::nullopt;
  return quota / period;
}

Machine InspectMachine(const std::string& board_path, const std::string& socket_path,
                       std::int32_t service_pid, const std::string& mps_directory) {
  Machine machine;
  machine.board = InspectFile(board_path);
  machine.socket = InspectFile(socket_path);
  machine.uid = ::geteuid();
  machine.memfd = TryMemfd();
  machine.limits = ReadLimits(service_pid);
  machine.shell_limits = ReadLimits(0);
  if (service_pid > 0) machine.threads = ReadThreads(service_pid);
  machine.cores = CoresAllowed();
  machine.cpu_quota = ReadCpuQuota(service_pid);
  machine.quota_is_of_service = service_pid > 0;
  ReadSharedMemory(machine);
  machine.shmem_huge_pages =
      ChosenWord(ReadFile("/sys/kernel/mm/transparent_hugepage/shmem_enabled"));
  machine.rdma_devices = NamesIn("/sys/class/infiniband");
  machine.libraries = FindLibraries();
  machine.mps_directory = mps_directory;
  machine.has_mps = IsThere(mps_directory + "/control");
  return machine;
}

}  // namespace headrace::ctl
