#include "service/plan/operations.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "ipc/base/check.h"
#include "service/plan/scale.h"

namespace headrace::plan {
namespace {

// Bytes that the lane inside a node reads and writes for each byte of the operation.
double TouchedInNode(Collective kind, const OperationNetwork& network) {
  const double ranks = network.ranks_per_node;
  const double world = ranks * network.nodes;
  if (network.ranks_per_node == 1) return 0;
  const bool alone = network.nodes == 1;
  if (kind == kSend) return alone ? 2 : 0;
  if (kind == kGather || kind == kScatter) return 2 * (ranks - 1);
  // Between the ranks of a node go so many parts of the world's.
  if (kind == kAllToAll) return 2 * ranks * (ranks - 1) / world;
  const double summing = ranks + 1;
  const double copying = ranks;  // one has it
  if (kind == Collective::kAllReduce) return alone ? 2 * ranks : summing + copying;
  return Reduces(kind) ? summing : copying;
}

// Multiples of the operation's bytes that a node has as a member.
double OfNode(Collective kind, const OperationNetwork& network) {
  const bool each = kind == kAllToAll || kind == kGather || kind == kScatter;
  return each ? network.ranks_per_node : 1;
}

double BetweenNodes(const CollectiveWork& work, const OperationNetwork& network, double bytes) {
  const CostPiece& line = network.between_nodes;
  return work.steps * line.startup_s + line.s_per_byte * (work.sent * bytes) +
         kSumSecondsPerByte * (work.summed * bytes);
}

// Messages take both lanes side by side. The stages of blocks follow each other, so the quicker one
// shows for one block only.
double Together(Collective kind, const OperationCost& cost, double blocks) {
  const double longer = std::max(cost.in_node_s, cost.between_nodes_s);
  if (MovesInMessages(kind)) return longer;
  return longer + std::min(cost.in_node_s, cost.between_nodes_s) / blocks;
}

OperationCost Cheaper(const OperationCost& left, const OperationCost& right) {
  return right.seconds < left.seconds ? right : left;
}

bool Good(const CostPiece& line) {
  const auto good = [](double value) { return std::isfinite(value) && value >= 0; };
  return good(line.startup_s) && good(line.s_per_byte);
}

}  // namespace

Status CheckOperationNetwork(const OperationNetwork& network) {
  const auto refuse = [](const std::string& what) {
    return Error{Code::kInvalidArgument, "operation: " + what};
  };
  const std::uint64_t ranks = std::uint64_t{network.nodes} * network.ranks_per_node;
  if (ranks < 2) return refuse("one rank has nobody to exchange with: give more nodes or ranks");
  if (ranks > kRanksMax) {
    return refuse(std::to_string(ranks) + " ranks are more than " + std::to_string(kRanksMax));
  }
  if (!Good(network.between_nodes) || !Good(network.in_node)) {
    return refuse("a cost line is negative or not finite");
  }
  if (!(network.block_bytes > 0)) return refuse("blocks have no bytes");
  return {};
}

std::vector<OperationCost> OperationCosts(Collective kind, const OperationNetwork& network,
                                          double bytes) {
  HR_CHECK(std::ranges::find(kOperations, kind) != kOperations.end(), static_cast<int>(kind));
  const double touched = TouchedInNode(kind, network);
  OperationCost cost;
  if (touched > 0) {
    cost.in_node_s = network.in_node.startup_s +
                     network.in_node.s_per_byte * bytes * touched / (2.0 * network.ranks_per_node);
  }
  const double blocks = std::max(1.0, std::ceil(bytes / network.block_bytes));
  std::vector<OperationCost> costs;
  for (const WireAlgorithm algorithm : kWireAlgorithms) {
    const auto work = WorkOf(kind, algorithm, network.nodes);
    if (!work || (network.nodes == 1 && !costs.empty())) continue;
    cost.algorithm = algorithm;
    cost.between_nodes_s = BetweenNodes(*work, network, bytes * OfNode(kind, network));
    cost.sent_bytes = work->sent * bytes * OfNode(kind, network);
    cost.seconds = Together(kind, cost, blocks);
    costs.push_back(cost);
  }
  return costs;
}

OperationCost CheapestOf(const std::vector<OperationCost>& costs) {
  HR_CHECK(!costs.empty());
  OperationCost best = costs.front();
  for (const OperationCost& cost : costs) best = Cheaper(best, cost);
  return best;
}

OperationCost CarriedOut(Collective kind, const std::vector<OperationCost>& costs) {
  std::vector<OperationCost> carried_out;
  std::ranges::copy_if(costs, std::back_inserter(carried_out), [kind](const OperationCost& cost) {
    return IsCarriedOut(kind, cost.algorithm);
  });
  return CheapestOf(carried_out);
}

}  // namespace headrace::plan
