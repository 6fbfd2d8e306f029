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
  std::vector<std::uint32_t> ranks;    // growing; empty for a server
  std::vector<std::string> addresses;  // of its lanes between nodes, in their order; opaque bytes
  std::string control{};               // "host:port" of its service; empty: not known

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
  std::vector<AgreedNode> nodes;  // those with ranks, by their lowest rank, then the servers
  std::uint32_t servers_count = 0;
  std::vector<transport::CostLine> costs;  // of each lane; empty until they are measured
  std::uint32_t gpu_lanes = 0;             // JobNodes::gpu_lanes; each node puts in what it has
  std::uint32_t verify = 0;                // JobNodes::verify
  std::string leader{};                    // name of the node whose service leads the job

  // Whether blocks may travel as a reduce-scatter and, later, an all-gather: a server forgets a sum
  // once it has sent it, and lanes of GPUs have no halves that share a result's place.
  // Inside one node nothing crosses that could go apart.
  bool takes_halves() const { return servers_count == 0 && gpu_lanes == 0 && nodes.size() > 1; }

  friend bool operator==(const Agreement&, const Agreement&) = default;
};

// One line for each thing agreed, the key included, costs to the last bit.
std::string CanonicalText(const Agreement& agreement);
// FNV-1a over the canonical text: tells nodes apart that differ by accident, proves nothing against
// one that lies.
std::uint64_t HashOf(const Agreement& agreement);

// How a node whose lanes are these carries GPUs' memory to others, for people: "by NCCL from 2 GPUs
// (gpu_network = nccl)".
std::string DescribeGpuLanes(std::uint32_t gpu_lanes);

// What dispatch needs of it on the node `self`, and what its lane `lane` does.
JobNodes NodesOf(const Agreement& agreement, std::uint32_t self);
transport::GroupOptions GroupOf(const Agreement& agreement, std::uint32_t self, std::size_t lane,
                                std::uint32_t group);

// Makes `slowest` at least as slow as `measured`, lane by lane.
void MergeCosts(std::vector<transport::CostLine>& slowest,
                const std::vector<transport::CostLine>& measured);

}  // namespace headrace::service
