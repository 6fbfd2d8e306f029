// A profile as it is played: the gradients of a model in forward order, and how long each one's
// backward and forward pass take. The format is that of `python -m headrace.profile`,
// headrace-profile/1.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/collective.h"
#include "ipc/base/result.h"

namespace headrace::replay {

inline constexpr std::size_t kFileSizeMax = std::size_t{16} << 20;
inline constexpr std::size_t kTensorsMax = 768;                     // of a layout
inline constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 38;  // of one rank's gradients
inline constexpr double kSecondsMax = 3600;                         // of one iteration

struct Tensor {
  std::string name;
  std::uint64_t elements = 0;
  TimeNs backward_ns = 0;
  TimeNs forward_ns = 0;
};

struct Profile {
  std::string model;
  DType dtype = DType::kFloat32;
  std::vector<Tensor> tensors;  // at least one, each with at least one element

  std::uint64_t bytes() const;
};

// Times are multiplied by `scale`, sizes stay. The error names the field: "tensors[3].elements is
// 0". Fields it does not know are skipped.
Result<Profile> ParseProfile(std::string_view text, double scale);

// Reads and parses a file; the error names it.
Result<Profile> ReadProfile(const std::string& path, double scale);

}  // namespace headrace::replay
