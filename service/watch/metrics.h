// The board as Prometheus scrapes it: METRICS.md lists every name with its meaning.
//
// A pure function of one reading. Its size is bounded by the board's tables. Series of a job carry
// its name, which no other living job has; they end with it, while those of the service stay.
#pragma once

#include <cstdint>
#include <string>

#include "ipc/base/clock.h"
#include "ipc/board_reading.h"

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

// "text/plain; version=0.0.4; charset=utf-8".
std::string WriteMetrics(const ipc::BoardReading& reading, const ProcessFacts& process);

}  // namespace headrace::service
