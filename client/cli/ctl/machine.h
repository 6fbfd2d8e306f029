// What this machine offers, looked up once; doctor judges it.
#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/cli/ctl/libraries.h"
#include "ipc/base/result.h"

namespace headrace::ctl {

// A file as doctor cares for it.
struct FileState {
  bool exists = false;
  bool is_socket = false;
  std::uint32_t mode = 0;  // permission bits
  std::uint32_t uid = 0;
  bool may_write = false;  // this user
};

struct Limits {
  std::string of;  // "the service" or "this shell"
  std::uint64_t locked_bytes = 0;
  std::uint64_t open_files = 0;
};
inline constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};

// What a process's threads do, as the kernel says.
struct Threads {
  std::uint32_t count = 0;
  std::uint32_t stopped = 0;          // by a signal or a debugger
  std::uint32_t uninterruptible = 0;  // in the kernel, deaf to signals: a disk, a driver
};

struct Machine {
  FileState board;
  FileState socket;
  std::uint32_t uid = 0;  // of who asks
  Status memfd;           // whether a sealed memfd can be made, mapped and verified
  Limits limits;          // of the service where they can be read
  Limits shell_limits;
  Threads threads;                   // of the service
  std::uint32_t cores = 0;           // this process may run on
  std::optional<double> cpu_quota;   // cores' worth of time; nothing: no quota
  bool quota_is_of_service = false;  // else of this shell
  std::uint64_t shm_bytes = 0;       // of /dev/shm; 0: there is none
  std::uint64_t shm_free_bytes = 0;
  std::string shmem_huge_pages;  // the chosen word of shmem_enabled; or empty
  Libraries libraries;
  std::vector<std::string> rdma_devices;
  std::string mps_directory;  // where it was looked for
  bool has_mps = false;       // a control daemon of MPS is there
};

// `service_pid`: whose limits to read, 0 when no service runs. `mps_directory`: where MPS keeps its
// pipes.
Machine InspectMachine(const std::string& board_path, const std::string& socket_path,
                       std::int32_t service_pid, const std::string& mps_directory);

// Cores' worth of time by the text of cpu.max, "200000 100000"; nothing for "max 100000".
std::optional<double> ParseCpuMax(const std::string& text);

// The chosen word of a file like "always within_size [never] deny"; empty when there is none.
std::string ChosenWord(const std::string& text);

// The soft limit called `name` in the text of /proc/PID/limits.
std::optional<std::uint64_t> ParseLimit(const std::string& text, const std::string& name);

}  // namespace headrace::ctl
