// The machine's resources that this process uses, for its metrics.
#pragma once

#include <cstdint>

#include "ipc/base/clock.h"

namespace headrace::service {

// What the kernel says of this process.
struct ProcessFacts {
  TimeNs cpu_ns = 0;  // user and system, all threads
  std::uint64_t resident_bytes = 0;
  std::uint64_t virtual_bytes = 0;
  std::uint64_t descriptors = 0;
  std::uint64_t descriptors_max = 0;
  std::uint64_t threads = 0;
};

// What cannot be read stays 0.
ProcessFacts ReadProcess();

}  // namespace headrace::service
