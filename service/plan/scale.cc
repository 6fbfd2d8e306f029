#include "service/plan/scale.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "ipc/base/check.h"
#include "ipc/base/collective_work.h"

namespace headrace::plan {
namespace {

// Links of one level: among nodes, or among the ranks of a node.
struct Level {
  double count = 1;
  double latency_s = 0;
  double s_per_byte = 0;
};

Level Outer(const Cluster& cluster) {
  return {static_cast<double>(cluster.nodes), cluster.link_latency_s, 1 / cluster.link_bytes_per_s};
}

Level Inner(const Cluster& cluster) {
  return {static_cast<double>(cluster.ranks_per_node), cluster.inner_latency_s,
          1 / cluster.inner_bytes_per_s};
}

PiecewiseCost Line(const Level& level, Collective kind, WireAlgorithm algorithm) {
  const CollectiveWork work =
      WorkOf(kind, algorithm, static_cast<std::uint32_t>(level.count)).value();
  return Affine(work.steps * level.latency_s, work.sent * level.s_per_byte);
}

PiecewiseCost Ring(const Level& level) {
  return Line(level, Collective::kAllReduce, WireAlgorithm::kRing);
}

PiecewiseCost HalfRing(const Level& level) {
  return Line(level, Collective::kReduceScatter, WireAlgorithm::kRing);
}

PiecewiseCost Halving(const Level& level) {
  HR_CHECK(level.count >= 1, level.count);
  return Line(level, Collective::kAllReduce, WireAlgorithm::kHalvingDoubling);
}

PiecewiseCost Tree(const Level& outer, const Level& inner) {
  const auto depth = [](const Level& level) {
    return static_cast<double>(std::bit_width(static_cast<std::uint32_t>(level.count) - 1));
  };
  const double s_per_byte = outer.count > 1 ? outer.s_per_byte : inner.s_per_byte;
  const double crossings = outer.count * inner.count > 1 ? 2 : 0;
  return Affine(2 * depth(outer) * outer.latency_s + 2 * depth(inner) * inner.latency_s,
                crossings * s_per_byte);
}

Error Refuse(const std::string& what) { return {Code::kInvalidArgument, "cluster: " + what}; }

}  // namespace

std::string_view Name(AllReduceModel algorithm) {
  switch (algorithm) {
    case AllReduceModel::kRing:
      return "ring";
    case AllReduceModel::kHalvingDoubling:
      return "halving-doubling";
    case AllReduceModel::kTree:
      return "tree";
    case AllReduceModel::kTwoLevel:
      return "two-level";
  }
  return "unknown";
}

std::optional<AllReduceModel> AllReduceModelNamed(std::string_view name) {
  for (const AllReduceModel algorithm : kAllReduceModels) {
    if (Name(algorithm) == name) return algorithm;
  }
  return std::nullopt;
}

Status CheckCluster(const Cluster& cluster) {
  if (cluster.nodes == 0 || cluster.ranks_per_node == 0) return Refuse("it has no ranks");
  const std::uint64_t ranks = std::uint64_t{cluster.nodes} * cluster.ranks_per_node;
  if (ranks > kRanksMax) {
    return Refuse(std::to_string(ranks) + " ranks are more than " + std::to_string(kRanksMax));
  }
  const auto good = [](double value) { return std::isfinite(value) && value > 0; };
  if (!good(cluster.link_bytes_per_s) || !good(cluster.inner_bytes_per_s)) {
    return Refuse("a bandwidth is not positive");
  }
  const auto duration = [](double value) { return std::isfinite(value) && value >= 0; };
  if (!duration(cluster.link_latency_s) || !duration(cluster.inner_latency_s)) {
    return Refuse("a latency is negative");
  }
  return {};
}

Route ClusterRoute(const Cluster& cluster, AllReduceModel algorithm) {
  HR_CHECK(cluster.nodes > 0 && cluster.ranks_per_node > 0, cluster.nodes, cluster.ranks_per_node);
  const Level outer = Outer(cluster);
  const Level inner = Inner(cluster);
  switch (algorithm) {
    case AllReduceModel::kRing: {
      Level all = cluster.nodes > 1 ? outer : inner;
      all.count = outer.count * inner.count;
      return AllReduceRoute(Ring(all));
    }
    case AllReduceModel::kHalvingDoubling:
      return AllReduceRoute(Sum(Halving(inner), Halving(outer)));
    case AllReduceModel::kTree:
      return AllReduceRoute(Tree(outer, inner));
    case AllReduceModel::kTwoLevel:
      break;
  }
  if (cluster.ranks_per_node == 1) return AllReduceRoute(Ring(outer));
  if (cluster.nodes == 1) return AllReduceRoute(Ring(inner));
  return HierarchyRoute(HalfRing(inner), Ring(outer), HalfRing(inner));
}

Route ClusterServerRoute(const Cluster& cluster, Placement placement, std::uint32_t servers) {
  HR_CHECK(cluster.nodes > 0 && cluster.ranks_per_node > 0, cluster.nodes, cluster.ranks_per_node);
  const Level outer = Outer(cluster);
  double crossings = (outer.count - 1) / outer.count;
  if (placement == Placement::kExtra) {
    crossings = std::max(1.0, outer.count / static_cast<double>(std::max(1u, servers)));
  }
  const PiecewiseCost transfer = Affine(outer.latency_s, crossings * outer.s_per_byte);
  Route route = ParameterServerRoute(transfer, transfer, placement);
  if (cluster.ranks_per_node == 1) return route;
  // Inside the node the gradients are scattered before the push and gathered after the pull.
  const auto lane = static_cast<std::uint32_t>(route.lanes.size());
  route.lanes.emplace_back("intra-node");
  const Level inner = Inner(cluster);
  route.stages.insert(route.stages.begin(), {"reduce-scatter", {{lane, HalfRing(inner)}}});
  route.stages.push_back({"all-gather", {{lane, HalfRing(inner)}}});
  return route;
}

}  // namespace headrace::plan
