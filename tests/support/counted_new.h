// Counts the calls of every operator new of the program while `counting` is set. For programs in
// which only one thread runs meanwhile.
#pragma once

#include <cstdint>

namespace headrace::support {

extern bool counting;
extern std::uint64_t allocations;

}  // namespace headrace::support
