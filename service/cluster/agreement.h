// Everything the nodes of a job agree on before a block travels between them, and the hash by which
// they prove it to each other. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ipc/base/ids.h"
#include "service/session/nodes.h"
#include "transport/network.h"

namespace headrace::service {

inline constexpr std::size_t kLaneAddressMax = 16384;  // bytes

struct AgreedNode {
  std::string name;
  std::vector<std::uint32_t> ranks;  // in growing order; empty for a server
  std::vector<std::string>
      addresses;  // addresses of its lanes between nodes, in the order of lanes; opaque bytes
  std::string control{};  // "host:port" of its service; empty: not known

  friend bool operator==(const AgreedNode&, const AgreedNode&) = default;
};

struct Agreement {
  std::string job;
  std::uint32_t world_size = 1;
  std::uint32_t epoch = 1;
  std::uint64_t key = 0;
  std::uint32_t plan_version = 1;
  std::uint64_t block_bytes = 0;
  transport::Algorithm algorithm = transport::Algorithm::kAuto;
  std::vector<AgreedNode> nodes;  // nodes with ranks by their lowest rank, then servers
  std::uint32_t servers_count = 0;
  std::vector<transport::CostLine> costs;  // of each lane; empty until they are measured
  std::uint32_t nccl_lanes = 0;            // JobNodes::nccl_lanes; each node sets its own
  std::uint32_t verify = 0;                // JobNodes::verify
  std::string leader{};                    // name of the node whose service leads the job

  // Whether plans may split an all-reduce into a reduce-scatter and a later all-gather. Not with
  // servers, which drop a sum once they have sent it. Not with NCCL lanes, whose halves would need
  // the same memory for results. Not in a job on one node, which sends nothing between nodes.
  bool takes_halves() const { return servers_count == 0 && nccl_lanes == 0 && nodes.size() > 1; }

  friend bool operator==(const Agreement&, const Agreement&) = default;
};

// The text that is hashed: one line for each agreed value, including the key. Costs are exact.
std::string CanonicalText(const Agreement& agreement);
// FNV-1a of the canonical text. Detects nodes that differ by accident, not nodes that lie.
std::uint64_t HashOf(const Agreement& agreement);

// How a node with these lanes carries GPU memory to other nodes, for texts: "by NCCL from 2 GPUs
// (gpu_network = nccl)".
std::string DescribeGpuNetwork(std::uint32_t nccl_lanes);

// The parts of the agreement that dispatch needs on node `self`, and those that lane `lane` needs.
JobNodes NodesOf(const Agreement& agreement, std::uint32_t self);
transport::GroupOptions GroupOf(const Agreement& agreement, std::uint32_t self, std::size_t lane,
                                std::uint32_t group);

// Makes `slowest` at least as slow as `measured`, lane by lane.
void MergeCosts(std::vector<transport::CostLine>& slowest,
                const std::vector<transport::CostLine>& measured);

}  // namespace headrace::service
