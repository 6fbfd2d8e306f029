// A profile: what one training iteration of a model looks like from outside, tensor by tensor. The
// recorder writes it as a file, the planner and the replay read it.
//
//   {"format": "headrace-profile/1", "model": "resnet50", "dtype": "float32",
//    "tensors": [{"name": "conv1.weight", "elements": 9408, "backward_s": 0.0040,
//                 "forward_s": 0.0020}, ...]}
//
// Tensors stand in forward order, input first; times are seconds. Fields with other names are
// skipped, so that a recorder may add where and when. A profile is a plain value; it is checked
// once where it enters (CheckProfile, ParseProfile) and trusted afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/base/collective.h"
#include "ipc/base/result.h"

namespace headrace::plan {

inline constexpr std::size_t kProfileFileSizeMax = std::size_t{1} << 27;
inline constexpr std::size_t kTensorsMax = 1'000'000;
inline constexpr std::uint64_t kElementsMax = std::uint64_t{1} << 48;  // of one tensor and of all
inline constexpr double kSecondsMax = 1e6;                             // of one tensor and of all

struct Tensor {
  std::string name;
  std::uint64_t elements = 0;
  double backward_s = 0;   // the tensor's share of its layer's backward pass
  double forward_s = 0;    // the tensor's share of its layer's forward pass
  std::uint64_t rows = 0;  // of a gradient that is known to be a matrix; files do not tell

  friend bool operator==(const Tensor&, const Tensor&) = default;
};

struct Profile {
  std::string model;
  DType dtype = DType::kFloat32;
  std::vector<Tensor> tensors;

  std::uint64_t bytes() const;  // of all gradients

  friend bool operator==(const Profile&, const Profile&) = default;
};

// Whether the planner can work with it: 1 to kTensorsMax tensors, each with at least one element
// and finite times that are not negative, all within the limits above. The error names the tensor
// and the field.
Status CheckProfile(const Profile& profile);

// Parses a file's text, which may be anybody's. The error names the line and the field, for example
// "profile: line 7: tensors[2].backward_s: is negative".
Result<Profile> ParseProfile(std::string_view text);

// Reads and parses a file; the error names it.
Result<Profile> ReadProfile(const std::string& path);

}  // namespace headrace::plan
