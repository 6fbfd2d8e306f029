// Counts every operator new of the program while it is told to. Belongs into programs of one thread
// at the time.
#pragma once

#include <cstdint>

namespace headrace::support {

extern bool counting;
extern std::uint64_t allocations;

}  // namespace headrace::support
