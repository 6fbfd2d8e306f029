#include "client/cli/replay/profile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "ipc/layout_limits.h"

namespace headrace::replay {
namespace {

// Gradients are floating point numbers; the others would not be averaged exactly.
constexpr std::array kDTypes = {DType::kFloat32, DType::kFloat64, DType::kFloat16,
                                DType::kBFloat16};

Error Wrong(const std::string& what) { return Error(Code::kInvalidArgument, what); }

std::string DTypeNames() {
  std::array<std::string_view, kDTypes.size()> names;
  std::transform(kDTypes.begin(), kDTypes.end(), names.begin(),
                 [](DType dtype) { return Name(dtype); });
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

Result<Profile> Replayable(Profile profile, double scale) {
  if (std::find(kDTypes.begin(), kDTypes.end(), profile.dtype) == kDTypes.end()) {
    return Wrong(fmt::format("dtype {}: gradients are {}", Name(profile.dtype), DTypeNames()));
  }
  if (profile.tensors.size() > ipc::kLayoutTensorsMax) {
    return Wrong(fmt::format("{} tensors: a job has at most {} gradients", profile.tensors.size(),
                             ipc::kLayoutTensorsMax));
  }
  std::uint64_t bytes = 0;
  double seconds = 0;
  for (std::size_t index = 0; index < profile.tensors.size(); ++index) {
    Tensor& tensor = profile.tensors[index];
    if (tensor.elements > (kBytesMax - bytes) / SizeOf(profile.dtype)) {
      return Wrong(fmt::format("tensors[{}].elements: a rank has at most {} bytes of gradients",
                               index, kBytesMax));
    }
    bytes += tensor.elements * SizeOf(profile.dtype);
    tensor.backward_s *= scale;
    tensor.forward_s *= scale;
    seconds += tensor.backward_s + tensor.forward_s;
    // Written so that a number which is none is refused too.
    if (!(seconds <= kIterationSecondsMax)) {
      return Wrong(
          fmt::format("tensors[{}]: an iteration takes at most {} s", index, kIterationSecondsMax));
    }
  }
  return profile;
}

Result<Profile> ReadReplayable(const std::string& path, double scale) {
  Result<Profile> profile = plan::ReadProfile(path);
  if (!profile) return profile.error();
  Result<Profile> replayable = Replayable(std::move(profile).value(), scale);
  if (!replayable) return replayable.error().Within("profile " + path);
  return replayable;
}

}  // namespace headrace::replay
