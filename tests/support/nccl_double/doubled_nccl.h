// The double, opened as the NCCL of a test.
#pragma once

#include <string>

#include "tests/support/nccl_double/nccl_double.h"

namespace headrace::nccl_double {

// Where the build put the library.
std::string LibraryPath();

// What the double offers beside NCCL's functions.
struct DoubledNccl {
  decltype(&headrace_nccl_double_counts) counts = nullptr;
  decltype(&headrace_nccl_double_fail) fail = nullptr;
  decltype(&headrace_nccl_double_hold_aborts) hold_aborts = nullptr;
  decltype(&headrace_nccl_double_hold_inits) hold_inits = nullptr;

  NcclDoubleCounts Counts() const {
    NcclDoubleCounts now{};
    counts(&now);
    return now;
  }
};
DoubledNccl LoadDouble();

}  // namespace headrace::nccl_double
