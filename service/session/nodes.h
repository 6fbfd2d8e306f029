// Where the ranks of a job of several nodes are, and what all of its nodes have agreed on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ipc/base/result.h"
#include "transport/network.h"

namespace headrace::service {

// JobNodes::block_bytes: an element of every type fits into the least, and some blocks of the
// largest fit into memory.
inline constexpr std::uint64_t kBlockBytesMin = 64;
inline constexpr std::uint64_t kBlockBytesMax = std::uint64_t{1} << 30;

struct JobNode {
  std::string name;
  std::vector<std::uint32_t> ranks;  // growing; empty for a server
};

// Equal on every node but for `self`, and `self` is a place in `nodes`.
struct JobNodes {
  std::vector<JobNode> nodes;  // those with ranks, by their lowest rank, then the servers
  std::uint32_t servers_count = 0;
  std::uint32_t self = 0;
  std::uint32_t epoch = 1;
  // Always 1: a job's plans switch at an iteration, within an epoch and its links. Nodes compare it
  // all the same, in the agreement and in each message (transport/network.h).
  std::uint32_t plan_version = 1;
  std::uint64_t block_bytes = 0;           // an operation's bytes are cut into blocks of this size
  std::vector<transport::CostLine> costs;  // agreed, of each lane between nodes, in their order
  // So many of these lanes carry GPUs' memory from where it is, number g that of GPU g. 0: GPUs'
  // memory goes through the host's.
  std::uint32_t nccl_lanes = 0;
  // Results are compared every so many iterations and operations; 0: never.
  std::uint32_t verify = 0;

  std::size_t data_nodes_count() const { return nodes.size() - servers_count; }
};

// Whether everything that the comments above promise holds, for a job of `world_size` ranks of
// which exactly `local` (growing) are on this node: another service says it, and nothing later
// checks it again. Costs may be missing as long as they are not measured. kCorrupt, with what is
// wrong: "rank 3 on node a and again on node b".
Status CheckNodes(const JobNodes& nodes, std::uint32_t world_size,
                  std::span<const std::uint32_t> local);

// The node that has `rank`; the rank exists.
std::uint32_t NodeOf(const JobNodes& nodes, std::uint32_t rank);

// Whether a lane may cost that: times that are finite, not negative and no age.
bool IsCost(const transport::CostLine& line);

}  // namespace headrace::service
