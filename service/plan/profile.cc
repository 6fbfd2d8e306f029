#include "service/plan/profile.h"

#include <cmath>
#include <string>

namespace headrace::plan {
namespace {

Error Refuse(std::size_t index, const Tensor& tensor, const std::string& what) {
  return {Code::kInvalidArgument,
          "tensors[" + std::to_string(index) + "] (" + tensor.name + "): " + what};
}

bool IsDuration(double seconds) {
  return std::isfinite(seconds) && seconds >= 0 && seconds <= kSecondsMax;
}

}  // namespace

Status CheckProfile(const Profile& profile) {
  if (profile.tensors.empty()) return Error(Code::kInvalidArgument, "tensors: there are none");
  if (profile.tensors.size() > kTensorsMax) {
    return Error(Code::kInvalidArgument,
                 "tensors: more than the limit of " + std::to_string(kTensorsMax));
  }
  if (!IsDType(static_cast<std::uint8_t>(profile.dtype))) {
    return Error(Code::kInvalidArgument, "dtype: unknown");
  }
  std::uint64_t elements = 0;
  double seconds = 0;
  for (std::size_t index = 0; index < profile.tensors.size(); ++index) {
    const Tensor& tensor = profile.tensors[index];
    if (tensor.elements == 0) return Refuse(index, tensor, "elements is 0");
    if (tensor.elements > kElementsMax - elements) {
      return Refuse(index, tensor, "elements exceeds the limit for a model");
    }
    if (!IsDuration(tensor.backward_s)) return Refuse(index, tensor, "backward_s is no duration");
    if (!IsDuration(tensor.forward_s)) return Refuse(index, tensor, "forward_s is no duration");
    elements += tensor.elements;
    seconds += tensor.backward_s + tensor.forward_s;
    if (seconds > kSecondsMax) return Refuse(index, tensor, "the times add up beyond the limit");
  }
  return {};
}

}  // namespace headrace::plan
