// Jobs in tests whose gradients move by a plan: a small layout, plans by hand, ranks that post.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

#include "tests/support/hand_driven_node.h"

namespace headrace::support {

// Gradients of float32 packed one behind the other, named "g0", "g1", ...
std::shared_ptr<const service::Layout> PackedLayout(const std::vector<std::uint64_t>& counts,
                                                    Reduction reduction = Reduction::kSum);

// Elements [begin, begin + count) of a gradient.
struct Piece {
  std::uint32_t tensor = 0;
  std::uint64_t begin = 0;
  std::uint64_t count = 0;
};
using Blocks = std::vector<std::vector<Piece>>;
std::shared_ptr<const plan::Plan> PlanOf(const Blocks& blocks, std::uint32_t version = 1,
                                         bool barrier = false);
// The same bytes, each block as a reduce-scatter and, behind all of these, an all-gather.
std::shared_ptr<const plan::Plan> HalvesOf(const Blocks& blocks, std::uint32_t version = 1);

// Registers the layout's tensors, from id 0 on and from the begin of segment 0, and hands it in.
void HandIn(HandDrivenNode& node, ClientEnd& client,
            const std::shared_ptr<const service::Layout>& layout,
            const service::ResidualsPlace& residuals = {});
// Offers the plan and puts it in force.
void Adopt(HandDrivenNode& node, JobId job, const std::shared_ptr<const plan::Plan>& plan,
           std::uint64_t from_iteration = 1, std::uint64_t iterations_before = 0);

// The record of one gradient, as the layout has it.
ipc::GradientRecord GradientOf(const service::Layout& layout, std::uint32_t tensor);
// Posts it; returns the record's number.
std::uint64_t PostGradient(ClientEnd& client, const ipc::GradientRecord& record);
std::uint64_t PostGradient(ClientEnd& client, const service::Layout& layout, std::uint32_t tensor);

}  // namespace headrace::support
