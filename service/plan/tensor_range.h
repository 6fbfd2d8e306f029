// A byte range of one gradient.
#pragma once

#include <cstdint>

namespace headrace::plan {

struct TensorRange {
  std::uint32_t tensor = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t bytes = 0;

  friend bool operator==(const TensorRange&, const TensorRange&) = default;
};

}  // namespace headrace::plan
