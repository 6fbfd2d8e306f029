// A block in words: "4.19 MB: fc.bias, fc.weight (first 3.10 of 8.19 MB)".
#pragma once

#include <string>

#include "ipc/profile.h"
#include "service/plan/plan.h"

namespace headrace::plan::tool {

// Bytes for people: "512 B", "1.50 KB", "8.19 MB", in powers of 1000.
std::string Size(std::uint64_t bytes);

// The contents of a block. Neighbouring whole tensors are given as "first .. last".
std::string Contents(const plan::PlannedBlock& block, const plan::Profile& profile);

}  // namespace headrace::plan::tool
