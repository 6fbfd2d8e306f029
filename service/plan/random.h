// Random numbers that are the same on every machine for the same seed (SplitMix64, Steele et al.,
// OOPSLA 2014). Not for secrets.
#pragma once

#include <cstdint>

namespace headrace::plan {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t Next() {
    state_ += 0x9E3779B97F4A7C15u;
    std::uint64_t value = state_;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
  }

  // In [0, 1), from the upper 53 bits.
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

}  // namespace headrace::plan
