// How a work item is cut into blocks, and which stages and shares each of them has. Pure. Ranges
// and shares are the same on every node: they depend only on the item's shape and on what the nodes
// agreed on. Stages differ from node to node: they depend on the number of ranks there and on where
// the root is.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "service/dispatch/job/block.h"
#include "service/dispatch/job/operation_spec.h"
#include "service/session/nodes.h"

namespace headrace::service {

// Bytes of the blocks between nodes of an operation that is not planned, the same on every node.
// Its parts are cut into smaller blocks than `nodes` has, so that links to several ranks' nodes are
// busy at the same time: a transport has some MiB under way, in the order of blocks.
inline constexpr std::uint64_t kPartBlockBytesMax = std::uint64_t{1} << 20;
std::uint64_t BlockBytesBetweenNodes(const OperationSpec& spec, const JobNodes& nodes);

// Into how many blocks of at most `block_bytes`; 0: the operation is one block. More than
// kBlocksPerOperationMax cannot be carried out.
std::uint64_t BlocksCount(const OperationSpec& spec, std::uint32_t world_size,
                          std::uint64_t block_bytes);
// Fills range and root of block `index`.
void CutBlock(const OperationSpec& spec, std::uint32_t world_size, std::uint64_t block_bytes,
              std::uint32_t index, Block& block);

// Returns the first block with a number of at least `index` of an operation whose parts differ in
// size (`parts`), or nothing. A block is of one part; numbers are the same on every node.
// `block_bytes` 0: a part is one block. Parts without elements have one only with `keeps_empty`.
struct PartBlock {
  std::uint32_t index = 0;
  std::uint32_t root = 0;
  Range range;
};
std::optional<PartBlock> NextPartBlock(std::span<const ipc::PartRow> parts, DType dtype,
                                       std::uint64_t block_bytes, bool keeps_empty,
                                       std::uint32_t index);
// All of its numbers, those without a block included.
std::uint64_t PartNumbersCount(std::span<const ipc::PartRow> parts, DType dtype,
                               std::uint64_t block_bytes);

// The first stage at or after `stage` that a block needs on a node with `local_ranks_count` ranks;
// never kVerify, which does not depend on the route. GPUs' memory reaches other nodes through
// scratch, so it has stages that host memory does not need. `root_is_here`: the rank whose part or
// data the block is, is on this node.
BlockStage NextStage(const OperationSpec& spec, const JobNodes* nodes,
                     std::size_t local_ranks_count, BlockStage stage, bool root_is_here = false);

// The same of a message between two ranks, of which at least one is of this node.
BlockStage NextMessageStage(bool crosses, BlockStage stage);

// The same of a send or receive. It crosses where its other side is away, and from or to GPUs'
// memory through scratch.
BlockStage NextPairStage(Away away, bool on_gpu, BlockStage stage);

// The shares of `range` on each lane between nodes, which end together by the agreed cost lines;
// shares may be empty. Returns how many lanes there are.
std::uint32_t ShareOut(const Range& range, std::uint64_t element_size,
                       const std::vector<transport::CostLine>& costs,
                       std::array<Range, kRailsMax>& shares);

// Whether GPUs' memory of that shape goes to other nodes directly, and not through the host's.
// Servers have no GPUs, and operations without elements move no memory.
bool CrossesFromGpus(const OperationSpec& spec, const JobNodes& nodes);

// The shares of `range` on each of that many NCCL lanes: equal ones, except that a small range goes
// to one lane alone. The first share is that of lane `first`; returns how many lanes there are.
inline constexpr std::uint64_t kGpuShareBytesMin = std::uint64_t{64} << 10;
std::uint32_t ShareEvenly(const Range& range, std::uint64_t element_size, std::uint32_t lanes_count,
                          std::uint64_t first, std::array<Range, kRailsMax>& shares);

}  // namespace headrace::service
