// What this machine offers, looked up once; doctor judges it.
#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <optional>
#include <string>

#include "ipc/base/result.h"

namespace headrace::ctl {

// A file as doctor cares for it.
struct FileLook {
  bool exists = false;
  bool is_socket = false;
  std::uint32_t mode = 0;  // permission bits
  std::uint32_t uid = 0;
  bool may_write = false;  // this user
};

struct Limits {
  std::string of;  // "the service (pid 12)" or "this shell"
  std::uint64_t locked_bytes = 0;
  std::uint64_t open_files = 0;
};
inline constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};

struct Machine {
  FileLook board;
  FileLook socket;
  Status memfd;  // whether a sealed memfd can be made, mapped and verified
  Limits limits;
  std::uint32_t cores = 0;                          // this process may run on
  std::string shmem_huge_pages;                     // the chosen word of shmem_enabled; or empty
  std::optional<std::int32_t> cuda_driver_version;  // 12040 for 12.4; nothing without libcuda.so.1
  std::string cuda_error;                           // why there is none
  bool has_ucx = false;
  bool has_nccl = false;
};

// `service_pid`: whose limits to read, 0 when no service runs.
Machine LookAtMachine(const std::string& board_path, const std::string& socket_path,
                      std::int32_t service_pid);

// The chosen word of a file like "always within_size [never] deny"; empty when there is none.
std::string ChosenWord(const std::string& text);

// The soft limit called `name` in the text of /proc/PID/limits.
std::optional<std::uint64_t> ParseLimit(const std::string& text, const std::string& name);

}  // namespace headrace::ctl
