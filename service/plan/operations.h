// What one operation of torch.distributed costs, by algorithm, from the lines of two lanes: that
// inside the node and that between nodes.
//
// Between nodes it is the work of ipc/base/collective_work.h, by which the exchange chooses, too.
// A node is one member: its ranks' sums have been made, and its ranks' messages leave by one link.
// Inside the node one lane sums and copies for all ranks, so a stage takes as long as the bytes
// that it reads and writes. The lane's line is that of an all-reduce, which reads and writes each
// byte once for each rank.
//
// Bytes are those of the tensor that each rank gives (of an all-gather and a scatter: gets), as
// torch.distributed has them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "ipc/base/collective_work.h"
#include "ipc/base/result.h"
#include "service/plan/cost.h"

namespace headrace::plan {

inline constexpr std::array kOperations{kSend,
                                        kAllToAll,
                                        Collective::kReduce,
                                        kGather,
                                        kScatter,
                                        Collective::kReduceScatter,
                                        Collective::kAllGather,
                                        Collective::kAllReduce,
                                        Collective::kBroadcast};

struct OperationNetwork {
  std::uint32_t nodes = 1;
  std::uint32_t ranks_per_node = 1;
  CostPiece between_nodes;       // of bytes that a node sends, as headracectl lanes has it
  CostPiece in_node;             // of an all-reduce among the ranks of a node
  double block_bytes = 1 << 20;  // in which stages follow each other
};

// 1 to kRanksMax ranks, two at least; lines that are finite and not negative.
Status CheckOperationNetwork(const OperationNetwork& network);

struct OperationCost {
  WireAlgorithm algorithm = WireAlgorithm::kDirect;  // between nodes
  double in_node_s = 0;
  double between_nodes_s = 0;
  double sent_bytes = 0;  // that the busiest node sends or receives
  double seconds = 0;

  friend bool operator==(const OperationCost&, const OperationCost&) = default;
};

// By every algorithm that there is for it. With one node there is the lane inside it only, so there
// is one. `kind` is one of kOperations; the network has passed CheckOperationNetwork.
std::vector<OperationCost> OperationCosts(Collective kind, const OperationNetwork& network,
                                          double bytes);
// The cheapest, and the cheapest of those that the exchange carries out; of equals the first.
OperationCost CheapestOf(const std::vector<OperationCost>& costs);
OperationCost CarriedOut(Collective kind, const std::vector<OperationCost>& costs);

}  // namespace headrace::plan
