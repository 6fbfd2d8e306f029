#include "service/dispatch/job/matrix_factors.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "ipc/base/matrix.h"

namespace headrace::service {
Result<std::uint64_t> MatrixFactors::MakeRoom(const plan::Plan& plan, const Layout& layout) {
  std::vector<Room> lacking;
  std::uint64_t bytes = 0;
  for (const plan::CodecRun& run : plan.codecs) {
    if (run.codec.kind != Codec::kPowerSgd) continue;
    for (std::uint32_t index = run.first; index < run.end(); ++index) {
      if (index >= layout.tensors.size() || !layout.tensors[index].Fits(run.codec)) continue;
      if (Find(index, run.codec) != nullptr) continue;
      const LayoutTensor& tensor = layout.tensors[index];
      Result<Mapping> memory = Mapping::Anonymous(
          FactorMemoryCount(run.codec, tensor.rows, tensor.count) * sizeof(float));
      if (!memory) return memory.error().Within("memory for factors of gradients");
      bytes += memory->size();
      lacking.push_back({.tensor = index, .codec = run.codec, .memory = std::move(*memory)});
    }
  }
  std::ranges::move(lacking, std::back_inserter(rooms_));
  return bytes;
}

std::uint64_t MatrixFactors::FreeRoom(const plan::Plan& plan, const plan::Plan* offered) {
  if (freed_for_ == plan.version) return 0;
  std::uint64_t bytes = 0;
  std::erase_if(rooms_, [&](const Room& room) {
    const Codec now = plan::CodecOf(plan, room.tensor);
    if (now.kind != Codec::kPowerSgd || now == room.codec) return false;
    if (offered != nullptr && plan::CodecOf(*offered, room.tensor) == room.codec) return false;
    bytes += room.memory.size();
    return true;
  });
  freed_for_ = plan.version;
  return bytes;
}

std::byte* MatrixFactors::Find(std::uint32_t tensor, const Codec& codec) const {
  const auto found = std::ranges::find_if(
      rooms_, [&](const Room& room) { return room.tensor == tensor && room.codec == codec; });
  return found == rooms_.end() ? nullptr : found->memory.data();
}

}  // namespace headrace::service
