// Which seeds the seeded tests of this folder run.
#pragma once

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace headrace::support {

struct Seeds {
  std::uint64_t first = 1;
  std::uint64_t count = 0;
  std::uint64_t first_new = 0;
  std::uint64_t count_new = 0;
  bool is_one = false;  // that somebody has named
};

// HEADRACE_SIM_SEED is the only one; HEADRACE_SIM_SEEDS are so many of each kind.
inline Seeds ReadSeeds(std::uint64_t count, std::uint64_t count_new) {
  const auto read = [](const char* name, std::uint64_t otherwise) {
    const char* const text = std::getenv(name);
    return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
  };
  if (const std::uint64_t one = read("HEADRACE_SIM_SEED", 0); one != 0) {
    return {.first = one, .count = 1, .is_one = true};
  }
  std::random_device random;
  // New ones are beyond all fixed ones, and short enough to be typed.
  return {.count = read("HEADRACE_SIM_SEEDS", count),
          .first_new = 1'000'000'000 + std::uint64_t{random()},
          .count_new = read("HEADRACE_SIM_SEEDS", count_new)};
}

inline void PrintSeeds(const char* what, const Seeds& seeds) {
  std::printf("%s: %" PRIu64 " seeds from %" PRIu64 ", and %" PRIu64 " new ones from %" PRIu64 "\n",
              what, seeds.count, seeds.first, seeds.count_new, seeds.first_new);
  std::fflush(stdout);
}

}  // namespace headrace::support
