// A plan as dispatch carries it out: each block's pieces of memory, and which gradients it holds.
// Pure, and the same on every node.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "service/plan/plan.h"
#include "service/session/layout.h"
#include "transport/transport.h"

namespace headrace::service {

// A block of a plan, or the elements of one type in it, as ranges of each rank's memory.
struct WireBlock {
  std::uint32_t plan_block = 0;              // its place in the plan
  Collective kind = Collective::kAllReduce;  // or one half of it
  DType dtype = DType::kFloat32;             // of all its elements
  Codec codec = Codec::kNone;                // likewise, between nodes
  std::uint64_t count = 0;                   // elements
  std::uint64_t rows = 0;                    // of the matrix that crosses as two factors
  std::size_t matrix = 0;                    // its number among the layout's matrices
  std::vector<transport::Run> runs;          // behind the layout's lowest tensor, growing
  std::vector<std::uint32_t> tensors;        // that it holds something of, growing

  std::uint64_t Bytes() const { return count * SizeOf(dtype); }
};

struct WirePlan {
  std::shared_ptr<const plan::Plan> plan;  // shared with peers, which also only reads it
  std::uint64_t hash = 0;
  std::vector<WireBlock> blocks;         // in the order in which they begin
  std::vector<std::uint32_t> blocks_of;  // per tensor: how many of them hold something of it
};

// Neighbours in memory become one run. A transfer sums elements of one type that cross in one
// codec, so a block with several is a wire block for each, in the order of their first gradients. A
// plan may come from another service: a block with more runs than a transfer may have becomes
// several wire blocks. A matrix that crosses as two factors is a wire block of its own; where the
// plan cuts one apart, it crosses as it is. The plan covers the layout as MergeTimes
// (cluster/planning_inputs.h) has it: where a gradient ends within the plan's last unit of it, so
// does its piece.
WirePlan MakeWirePlan(std::shared_ptr<const plan::Plan> plan, std::uint64_t hash,
                      const Layout& layout, std::size_t runs_max = transport::kRunsMax);

}  // namespace headrace::service
