// How many descriptors this process has open, for tests that compare before and after.
#pragma once

#include <cstddef>
#include <filesystem>
#include <iterator>

namespace headrace {

// One of them is the listing's own.
inline std::size_t OpenDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

}  // namespace headrace
