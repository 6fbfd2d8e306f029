// Pseudo-random numbers of the codecs that need them. They follow from a few numbers alone, so they
// are the same on every machine and in every run.
#pragma once

#include <cstdint>

namespace headrace::transport {

// SplitMix64's output (Steele et al., 2014) after `number` + 1 steps from `seed`: other numbers of
// either give another result.
constexpr std::uint64_t MixedSeed(std::uint64_t seed, std::uint64_t number) {
  std::uint64_t mixed = seed + (number + 1) * 0x9E3779B97F4A7C15U;
  mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9U;
  mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EBU;
  return mixed ^ mixed >> 31;
}

}  // namespace headrace::transport
