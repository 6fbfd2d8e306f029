#include "service/dispatch/blocks/cut.h"

#include <algorithm>

#include "ipc/base/check.h"
#include "service/plan/route.h"

namespace headrace::service {

namespace {

struct Cutting {
  std::uint64_t stretches = 1;      // ranges of one root each
  std::uint64_t stretch_count = 0;  // elements of each
  std::uint64_t block_count = 1;    // elements of a whole block
  std::uint64_t blocks_each = 1;    // of one stretch
};

Cutting CuttingOf(const OperationSpec& spec, std::uint32_t world_size, std::uint64_t block_bytes) {
  if (block_bytes == 0 || spec.count == 0) {
    return {.stretch_count = spec.count, .block_count = spec.count};
  }
  Cutting cutting;
  cutting.stretches = IsParted(spec.kind) ? world_size : 1;
  cutting.stretch_count = spec.count / cutting.stretches;
  cutting.block_count = std::max<std::uint64_t>(1, block_bytes / SizeOf(spec.dtype));
  cutting.blocks_each = (cutting.stretch_count + cutting.block_count - 1) / cutting.block_count;
  return cutting;
}

}  // namespace

std::uint64_t BlockBytesBetweenNodes(const OperationSpec& spec, const JobNodes& nodes) {
  // NCCL moves a block as one call, which has its price.
  if (!IsParted(spec.kind) || CrossesFromGpus(spec, nodes)) return nodes.block_bytes;
  // Half as many as an operation may have; the rest is for parts that end within a block.
  const std::uint64_t least = spec.Bytes() / (kBlocksPerOperationMax / 2);
  return std::min(nodes.block_bytes, std::max(kPartBlockBytesMax, least));
}

std::uint64_t BlocksCount(const OperationSpec& spec, std::uint32_t world_size,
                          std::uint64_t block_bytes) {
  const Cutting cutting = CuttingOf(spec, world_size, block_bytes);
  return cutting.stretches * cutting.blocks_each;
}

void CutBlock(const OperationSpec& spec, std::uint32_t world_size, std::uint64_t block_bytes,
              std::uint32_t index, Block& block) {
  const Cutting cutting = CuttingOf(spec, world_size, block_bytes);
  // Parts in turns, so that their ranks' links are busy together.
  const std::uint64_t stretch = index % cutting.stretches;
  const std::uint64_t begin = index / cutting.stretches * cutting.block_count;
  HR_CHECK(stretch < cutting.stretches, index);
  HR_CHECK(begin <= cutting.stretch_count, index, begin);
  block.index = index;
  block.range.begin = stretch * cutting.stretch_count + begin;
  block.range.count = std::min(cutting.block_count, cutting.stretch_count - begin);
  block.root =
      block_bytes != 0 && IsParted(spec.kind) ? static_cast<std::uint32_t>(stretch) : spec.root;
}

namespace {

// Elements of a whole block.
std::uint64_t BlockCountOf(DType dtype, std::uint64_t block_bytes) {
  return block_bytes == 0 ? UINT64_MAX : std::max<std::uint64_t>(1, block_bytes / SizeOf(dtype));
}

}  // namespace

std::uint64_t PartNumbersCount(std::span<const ipc::PartRow> parts, DType dtype,
                               std::uint64_t block_bytes) {
  std::uint64_t largest = 1;
  for (const ipc::PartRow& part : parts) largest = std::max(largest, part.sent_count);
  return ((largest - 1) / BlockCountOf(dtype, block_bytes) + 1) * parts.size();
}

// As CutBlock: parts in turns.
std::optional<PartBlock> NextPartBlock(std::span<const ipc::PartRow> parts, DType dtype,
                                       std::uint64_t block_bytes, bool keeps_empty,
                                       std::uint32_t index) {
  const std::uint64_t block_count = BlockCountOf(dtype, block_bytes);
  const std::uint64_t end = PartNumbersCount(parts, dtype, block_bytes);
  for (std::uint64_t number = index; number < end; ++number) {
    const std::uint64_t nth = number / parts.size();
    const auto root = static_cast<std::uint32_t>(number % parts.size());
    const ipc::PartRow& part = parts[root];
    const std::uint64_t begin = nth == 0 ? 0 : nth * block_count;
    if (begin >= part.sent_count && (nth > 0 || !keeps_empty)) continue;
    return PartBlock{.index = static_cast<std::uint32_t>(number),
                     .root = root,
                     .range = {.begin = part.sent_offset + begin,
                               .count = std::min(block_count, part.sent_count - begin)}};
  }
  return std::nullopt;
}

BlockStage NextStage(const OperationSpec& spec, const JobNodes* nodes,
                     std::size_t local_ranks_count, BlockStage stage, bool root_is_here) {
  const bool scatters = spec.half == Collective::kReduceScatter;
  const bool gathers = spec.half == Collective::kAllGather;
  if (nodes == nullptr) {
    // A half that gathers only gives the ranks what the other one has left with the first of them.
    const BlockStage only = gathers ? BlockStage::kToRanks : BlockStage::kInNode;
    return stage <= only ? only : BlockStage::kDone;
  }
  const bool several = local_ranks_count > 1;
  // A reduced part is for one rank only, and the stage between nodes has put it there.
  const bool shared = IsShared(spec.kind);
  if (spec.OnGpu() && stage == BlockStage::kInNode) {
    return Reduces(spec.kind) || root_is_here ? BlockStage::kInNode : BlockStage::kBetweenNodes;
  }
  if (spec.OnGpu() && stage == BlockStage::kToRanks) {
    const bool has_it = !Reduces(spec.kind) && root_is_here;
    const bool wanted = shared ? several || !has_it : root_is_here;
    return wanted ? BlockStage::kToRanks : BlockStage::kDone;
  }
  switch (stage) {
    case BlockStage::kInNode:
      return several && Reduces(spec.kind) && !gathers ? BlockStage::kInNode
                                                       : BlockStage::kBetweenNodes;
    case BlockStage::kBetweenNodes:
      return BlockStage::kBetweenNodes;
    case BlockStage::kToRanks:
      return several && shared && !scatters ? BlockStage::kToRanks : BlockStage::kDone;
    case BlockStage::kVerify:
    case BlockStage::kDone:
      break;
  }
  return BlockStage::kDone;
}

BlockStage NextMessageStage(bool crosses, BlockStage stage) {
  const BlockStage only = crosses ? BlockStage::kBetweenNodes : BlockStage::kInNode;
  return stage <= only ? only : BlockStage::kDone;
}

BlockStage NextPairStage(Away away, bool on_gpu, BlockStage stage) {
  if (away == Away::kNo) return stage == BlockStage::kInNode ? stage : BlockStage::kDone;
  if (stage == BlockStage::kInNode && away == Away::kGoes && on_gpu) return stage;
  if (stage <= BlockStage::kBetweenNodes) return BlockStage::kBetweenNodes;
  return stage == BlockStage::kToRanks && away == Away::kComes && on_gpu ? stage
                                                                         : BlockStage::kDone;
}

std::uint32_t ShareOut(const Range& range, std::uint64_t element_size,
                       const std::vector<transport::CostLine>& costs,
                       std::array<Range, kRailsMax>& shares) {
  HR_CHECK(!costs.empty() && costs.size() <= kRailsMax, costs.size());
  const auto rails = static_cast<std::uint32_t>(costs.size());
  if (rails == 1 || range.count == 0) {
    shares[0] = range;
    for (std::uint32_t rail = 1; rail < rails; ++rail) shares[rail] = {range.begin, 0};
    return rails;
  }
  plan::Stage stage{.name = "between nodes", .rails = {}};
  for (std::uint32_t rail = 0; rail < rails; ++rail) {
    stage.rails.push_back(
        {.lane = rail, .line = {{{0, costs[rail].startup_s, costs[rail].s_per_byte}}}});
  }
  const std::vector<std::uint64_t> bytes =
      plan::Shares(stage, range.count * element_size, element_size);
  std::uint64_t begin = range.begin;
  for (std::uint32_t rail = 0; rail < rails; ++rail) {
    shares[rail] = {begin, bytes[rail] / element_size};
    begin += shares[rail].count;
  }
  HR_CHECK(begin == range.begin + range.count, begin);
  return rails;
}

bool CrossesFromGpus(const OperationSpec& spec, const JobNodes& nodes) {
  return spec.OnGpu() && spec.count != 0 && nodes.nccl_lanes != 0 && nodes.servers_count == 0;
}

std::uint32_t ShareEvenly(const Range& range, std::uint64_t element_size, std::uint32_t lanes_count,
                          std::uint64_t first, std::array<Range, kRailsMax>& shares) {
  // Borders that split no access of 16 bytes, whatever the type.
  constexpr std::uint64_t kGrain = 64;
  HR_CHECK(lanes_count > 0 && lanes_count <= kRailsMax, lanes_count);
  const std::uint64_t even = (range.count + lanes_count - 1) / lanes_count;
  const std::uint64_t least = std::max(even, kGpuShareBytesMin / element_size);
  const std::uint64_t width = (least + kGrain - 1) / kGrain * kGrain;
  const std::uint64_t end = range.begin + range.count;
  std::uint64_t begin = range.begin;
  for (std::uint32_t i = 0; i < lanes_count; ++i) {
    const std::uint64_t border = std::min(end, begin + width);
    shares[(first + i) % lanes_count] = {begin, border - begin};
    begin = border;
  }
  HR_CHECK(begin == end, begin, end);
  return lanes_count;
}

}  // namespace headrace::service
