// Where a simulation's chances come from: one seed, the same run.
#pragma once

#include <cstdint>
#include <random>

namespace headrace::sim {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}

  // Evenly among 0, ..., below - 1.
  std::uint64_t Below(std::uint64_t below) { return random_() % below; }
  std::uint64_t Between(std::uint64_t first, std::uint64_t last) {
    return first + Below(last - first + 1);
  }
  // True `percent` times in a hundred.
  bool Chance(double percent) { return static_cast<double>(Below(1'000'000)) < percent * 10'000; }

 private:
  std::mt19937_64 random_;
};

}  // namespace headrace::sim
