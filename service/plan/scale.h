// Cost lines of a cluster that is not at hand: all-reduce algorithms as functions of nodes, ranks
// per node, link latency and bandwidth.
//
// P = nodes * ranks_per_node. One network link per node, shared by its ranks; its latency is
// alpha and its seconds per byte beta; inside a node each rank has a link with latency alpha_i and
// beta_i. Times of one block of m bytes:
//   ring               2(P-1) alpha                 + 2 (P-1)/P m beta            [1]
//   halving-doubling   2 log2(N) alpha + 2 log2(R) alpha_i
//                      + 2 (N-1)/N m beta + 2 (R-1)/R m beta_i; where N or R is no power of two,
//                      the ranks above it fold in and out: one more alpha and m beta each way   [2]
//   tree               2 ceil(log2 N) alpha + 2 ceil(log2 R) alpha_i + 2 m beta   [3]
//   two-level          reduce-scatter in the node, ring of the nodes, all-gather in the node: three
//                      stages on two lanes
//                      alpha_i + (R-1)/R m beta_i | 2(N-1) alpha + 2 (N-1)/N m beta | as 1st
// With one node the ring and the tree run on the links inside it.
// [1] Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 2009.
// [2] Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; the steps with
//     the large messages run inside the node.
// [3] Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and
//     scan", Parallel Computing 2009; pipelined, so each byte crosses a link once each way.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "service/plan/route.h"

namespace headrace::plan {

enum class AllReduceModel : std::uint8_t { kRing, kHalvingDoubling, kTree, kTwoLevel };
inline constexpr AllReduceModel kAllReduceModels[] = {
    AllReduceModel::kRing, AllReduceModel::kHalvingDoubling, AllReduceModel::kTree,
    AllReduceModel::kTwoLevel};
inline constexpr std::uint32_t kRanksMax = 8192;

std::string_view Name(AllReduceModel algorithm);
std::optional<AllReduceModel> AllReduceModelNamed(std::string_view name);

struct Cluster {
  std::uint32_t nodes = 1;
  std::uint32_t ranks_per_node = 1;
  double link_latency_s = 5e-6;
  double link_bytes_per_s = 12.5e9;
  double inner_latency_s = 1e-6;
  double inner_bytes_per_s = 400e9;
};

// 1 to kRanksMax ranks in all, positive bandwidths, latencies that are not negative.
Status CheckCluster(const Cluster& cluster);

// The cluster must have passed CheckCluster.
Route ClusterRoute(const Cluster& cluster, AllReduceModel algorithm);

// Parameter servers: every node pushes each byte once and pulls it once. Colocated, each of the N
// nodes holds 1/N of the parameters, so (N-1)/N of a block crosses the network; on `servers` extra
// nodes each server link carries N/servers times the block where that is more than the node's own.
Route ClusterServerRoute(const Cluster& cluster, Placement placement, std::uint32_t servers);

}  // namespace headrace::plan
