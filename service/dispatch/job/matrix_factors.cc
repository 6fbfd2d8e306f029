#include "service/dispatch/job/matrix_factors.h"

#include <algorithm>
#include <utility>

#include "ipc/base/matrix.h"

namespace headrace::service {
namespace {

constexpr std::uint64_t kAlignment = 64;

std::uint64_t BytesFor(const LayoutTensor& tensor, const Codec& codec) {
  const std::uint64_t bytes = FactorMemoryCount(codec, tensor.rows, tensor.count) * sizeof(float);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

Result<std::uint64_t> MatrixFactors::MakeRoom(const plan::Plan& plan, const Layout& layout) {
  std::vector<Room> lacking;
  std::uint64_t bytes = 0;
  for (const plan::CodecRun& run : plan.codecs) {
    if (run.codec.kind != Codec::kPowerSgd) continue;
    for (std::uint32_t tensor = run.first; tensor < run.end(); ++tensor) {
      if (tensor >= layout.tensors.size() || !layout.tensors[tensor].Fits(run.codec)) continue;
      if (Find(tensor, run.codec) != nullptr) continue;
      lacking.push_back({.tensor = tensor, .codec = run.codec});
      bytes += BytesFor(layout.tensors[tensor], run.codec);
    }
  }
  if (lacking.empty()) return std::uint64_t{0};
  Result<Mapping> made = Mapping::Anonymous(bytes);
  if (!made) return made.error().Within("memory for factors of gradients");
  memory_.push_back(std::move(made).value());
  std::byte* next = memory_.back().data();
  for (Room& room : lacking) {
    room.memory = next;
    next += BytesFor(layout.tensors[room.tensor], room.codec);
    rooms_.push_back(room);
  }
  return bytes;
}

std::byte* MatrixFactors::Find(std::uint32_t tensor, const Codec& codec) const {
  const auto found = std::ranges::find_if(
      rooms_, [&](const Room& room) { return room.tensor == tensor && room.codec == codec; });
  return found == rooms_.end() ? nullptr : found->memory;
}

}  // namespace headrace::service
