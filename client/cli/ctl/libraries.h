// Which vendors' libraries this machine has: opened at run time, asked for their version, closed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headrace::ctl {

// A library that is opened at run time.
struct Library {
  bool is_found = false;
  std::string version;  // "1.13.1"; empty where it does not say
  std::string error;    // why it cannot be used
};

struct Libraries {
  Library ucx;
  Library nccl;
  std::optional<std::int32_t> cuda_driver_version;  // 12040 for 12.4; nothing without libcuda.so.1
  std::string cuda_error;                           // why there is none
  std::vector<std::string> gpus;                    // names
};

Libraries FindLibraries();

}  // namespace headrace::ctl
