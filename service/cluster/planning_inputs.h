// What a job's plan is made from: the times and cost lines that its nodes have seen, merged. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ipc/base/codec_cost.h"
#include "ipc/base/result.h"
#include "ipc/profile.h"
#include "service/plan/recording.h"
#include "service/plan/route.h"
#include "service/session/layout.h"
#include "transport/network.h"

namespace headrace::service {

// Who carries the job's gradients.
struct JobShape {
  struct Node {
    std::string name;
    std::vector<std::uint32_t> ranks;
  };
  std::vector<Node> nodes;  // with ranks
  std::uint32_t servers_count = 0;
  std::vector<transport::CostLine> agreed;  // of each lane between nodes, in bytes sent
  bool halves = true;                       // Agreement::takes_halves

  bool crosses_nodes() const { return nodes.size() > 1 || servers_count > 0; }
};

// What one node has seen. The first of `costs` is the lane inside the node, then those between.
struct NodeSeen {
  NodeTimes times;
  std::vector<transport::CostLine> costs;
  std::vector<CodecCost> codecs{};  // of a transfer between the job's nodes
  bool rails_changed = false;       // one was lost or is back, and the costs are of the time since
};

// Whether all times, medians and those of recorded iterations, are finite and not negative,
// and the contention is a share.
bool AreRecorded(const NodeTimes& times);

// Whether they can belong to that layout and those lanes: as many as there are tensors and lanes,
// finite and not negative.
Status CheckSeen(const NodeSeen& seen, const Layout& layout, const JobShape& shape);

// The iteration of the slowest: a gradient is released when the last node has released it, and from
// each gradient to its end the forward pass takes as long as on the node where that takes longest.
// A gradient that is ready before one behind it counts as ready together with it. Without nodes all
// times are zero.
plan::Profile MergeTimes(const std::string& model, const Layout& layout,
                         std::span<const NodeSeen> seen);

// The iterations that all nodes have recorded, as CheckRecording wants them. Nodes' clocks have
// nothing in common but the ends of blocks, which all see at nearly the same time: an iteration
// begins on a node so long after the last block of the one before has ended there. The last node to
// begin counts, and of each gradient the last node to release it. Without those in which the loop
// did something else, as an evaluation or a checkpoint, and took twice as long as most.
plan::Recording MergeRecorded(std::span<const NodeSeen> seen);

// An iteration of the slowest node, and of it the time that no plan can save: nobody stood still
// for gradients then. 0: not known.
struct IterationSeen {
  double iteration_s = 0;
  double running_s = 0;
};
IterationSeen IterationOf(std::span<const NodeSeen> seen);

// The cost of a block of gradients on a lane between nodes: lines there are in bytes that a node
// sends for it, plans in bytes of the block.
plan::PiecewiseCost BlockCost(const transport::CostLine& line, const JobShape& shape);

// The route of the job's blocks. On a lane between nodes the line of the fastest node counts, since
// only the node that came last to a block saw its cost, the others also waited; inside the nodes
// that of the slowest. Where nothing was seen the agreed line stands. `block_bytes` is the size for
// which lines are compared.
plan::Route RouteOf(const JobShape& shape, std::span<const NodeSeen> seen, double block_bytes);

// Gives the stage between nodes the cost of each of those codecs that every node has reported: the
// slowest node's, since all wait for it. Where servers sum, nodes report how long all processors
// took, and the node that waited least for others counts; headers count with the bytes.
void AddCodecs(plan::Route& route, const JobShape& shape, std::span<const NodeSeen> seen,
               std::span<const Codec> codecs);

// Where servers sum, a transfer holds neighbours in memory only: gives the stage between nodes
// where the gradients lie.
void AddRuns(plan::Route& route, const JobShape& shape, const Layout& layout);

}  // namespace headrace::service
