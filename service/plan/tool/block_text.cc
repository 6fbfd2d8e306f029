#include "service/plan/tool/block_text.h"

#include <fmt/format.h>

#include <algorithm>

namespace headrace::plan::tool {
namespace {

std::uint64_t BytesOf(const plan::Profile& profile, std::uint32_t tensor) {
  return profile.tensors[tensor].elements * SizeOf(profile.dtype);
}

std::string RangeText(const plan::TensorRange& range, const plan::Profile& profile) {
  const std::string& name = profile.tensors[range.tensor].name;
  const std::uint64_t whole = BytesOf(profile, range.tensor);
  if (range.bytes == whole) return name;
  std::string_view which = "middle";
  if (range.offset_bytes == 0) which = "first";
  if (range.offset_bytes + range.bytes == whole) which = "last";
  return fmt::format("{} ({} {} of {})", name, which, Size(range.bytes), Size(whole));
}

}  // namespace

std::string Size(std::uint64_t bytes) {
  if (bytes < 1000) return fmt::format("{} B", bytes);
  const auto value = static_cast<double>(bytes);
  if (value < 999.995e3) return fmt::format("{:.2f} KB", value / 1e3);
  if (value < 999.995e6) return fmt::format("{:.2f} MB", value / 1e6);
  return fmt::format("{:.2f} GB", value / 1e9);
}

std::string Contents(const plan::PlannedBlock& block, const plan::Profile& profile) {
  std::vector<plan::TensorRange> ranges = block.ranges;
  std::sort(ranges.begin(), ranges.end(),
            [](const plan::TensorRange& left, const plan::TensorRange& right) {
              return left.tensor != right.tensor ? left.tensor < right.tensor
                                                 : left.offset_bytes < right.offset_bytes;
            });
  const auto whole = [&](std::size_t index) {
    return ranges[index].bytes == BytesOf(profile, ranges[index].tensor);
  };
  std::string text;
  for (std::size_t first = 0; first < ranges.size();) {
    std::size_t last = first;
    while (whole(first) && last + 1 < ranges.size() && whole(last + 1) &&
           ranges[last + 1].tensor == ranges[last].tensor + 1) {
      ++last;
    }
    if (!text.empty()) text += ", ";
    text += RangeText(ranges[first], profile);
    if (last > first) {
      text += (last > first + 1 ? " .. " : ", ") + RangeText(ranges[last], profile);
    }
    if (last > first + 1) text += fmt::format(" ({} tensors)", last - first + 1);
    first = last + 1;
  }
  return text;
}

}  // namespace headrace::plan::tool
