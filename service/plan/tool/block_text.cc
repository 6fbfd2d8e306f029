#include "service/plan/tool/block_text.h"

#include <fmt/format.h>

#include <algorithm>

namespace headrace::plan::tool {
namespace {

std::uint64_t BytesOf(const plan::Profile& profile, std::uint32_t tensor) {
  return profile.tensors[tensor].elements * SizeOf(profile.dtype);
}

std::string PartText(const plan::Part& part, const plan::Profile& profile) {
  const std::string& name = profile.tensors[part.tensor].name;
  const std::uint64_t whole = BytesOf(profile, part.tensor);
  if (part.bytes == whole) return name;
  std::string_view which = "middle";
  if (part.offset_bytes == 0) which = "first";
  if (part.offset_bytes + part.bytes == whole) which = "last";
  return fmt::format("{} ({} {} of {})", name, which, Size(part.bytes), Size(whole));
}

}  // namespace

std::string Size(std::uint64_t bytes) {
  if (bytes < 1000) return fmt::format("{} B", bytes);
  const auto value = static_cast<double>(bytes);
  if (value < 999.995e3) return fmt::format("{:.2f} KB", value / 1e3);
  if (value < 999.995e6) return fmt::format("{:.2f} MB", value / 1e6);
  return fmt::format("{:.2f} GB", value / 1e9);
}

std::string Contents(const plan::Block& block, const plan::Profile& profile) {
  std::vector<plan::Part> parts = block.parts;
  std::sort(parts.begin(), parts.end(), [](const plan::Part& left, const plan::Part& right) {
    return left.tensor != right.tensor ? left.tensor < right.tensor
                                       : left.offset_bytes < right.offset_bytes;
  });
  const auto whole = [&](std::size_t index) {
    return parts[index].bytes == BytesOf(profile, parts[index].tensor);
  };
  std::string text;
  for (std::size_t first = 0; first < parts.size();) {
    std::size_t last = first;
    while (whole(first) && last + 1 < parts.size() && whole(last + 1) &&
           parts[last + 1].tensor == parts[last].tensor + 1) {
      ++last;
    }
    if (!text.empty()) text += ", ";
    text += PartText(parts[first], profile);
    if (last > first) {
      text += (last > first + 1 ? " .. " : ", ") + PartText(parts[last], profile);
    }
    if (last > first + 1) text += fmt::format(" ({} tensors)", last - first + 1);
    first = last + 1;
  }
  return text;
}

}  // namespace headrace::plan::tool
