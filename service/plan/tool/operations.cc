#include "service/plan/tool/operations.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ipc/base/option_range.h"
#include "service/plan/operations.h"
#include "service/plan/scale.h"
#include "service/plan/tool/options.h"

namespace headrace::plan::tool {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kUs = 1e-6;
constexpr double kNs = 1e-9;
constexpr double kBytesMax = 1e15;

struct OperationsOptions {
  std::uint32_t nodes = 1;
  std::uint32_t ranks_per_node = 1;
  double startup_us = 0;
  double ns_per_byte = 0;
  double in_node_startup_us = 0;
  double in_node_ns_per_byte = 0;
  double block_bytes = 1 << 20;
  std::vector<double> bytes{4 << 10, 1 << 20, 64 << 20};
  bool json = false;
};

plan::OperationNetwork NetworkOf(const OperationsOptions& options) {
  return {
      .nodes = options.nodes,
      .ranks_per_node = options.ranks_per_node,
      .between_nodes = {.startup_s = options.startup_us * kUs,
                        .s_per_byte = options.ns_per_byte * kNs},
      .in_node = {.startup_s = options.in_node_startup_us * kUs,
                  .s_per_byte = options.in_node_ns_per_byte * kNs},
      .block_bytes = options.block_bytes,
  };
}

Json CostJson(const plan::OperationCost& cost) {
  return {{"algorithm", Name(cost.algorithm)},
          {"in_node_s", cost.in_node_s},
          {"between_nodes_s", cost.between_nodes_s},
          {"sent_bytes", cost.sent_bytes},
          {"seconds", cost.seconds}};
}

Json RowJson(Collective kind, double bytes, const std::vector<plan::OperationCost>& costs) {
  Json algorithms = Json::array();
  for (const plan::OperationCost& cost : costs) algorithms.push_back(CostJson(cost));
  return {{"operation", Name(kind)},
          {"bytes", static_cast<std::uint64_t>(bytes)},
          {"costs", algorithms},
          {"cheapest", Name(CheapestOf(costs).algorithm)},
          {"service", CostJson(CarriedOut(kind, costs))}};
}

void PrintHeads() {
  fmt::print("{:<15}{:>12}", "operation", "bytes");
  for (const WireAlgorithm algorithm : kWireAlgorithms) fmt::print("{:>18}", Name(algorithm));
  fmt::print("{:>18}{:>14}\n", "service", "predicted us");
}

void PrintRow(Collective kind, double bytes, const std::vector<plan::OperationCost>& costs) {
  fmt::print("{:<15}{:>12.0f}", Name(kind), bytes);
  for (const WireAlgorithm algorithm : kWireAlgorithms) {
    std::string text = "-";
    for (const plan::OperationCost& cost : costs) {
      if (cost.algorithm == algorithm) text = fmt::format("{:.1f}", cost.seconds / kUs);
    }
    fmt::print("{:>18}", text);
  }
  const plan::OperationCost service = CarriedOut(kind, costs);
  fmt::print("{:>18}{:>14.1f}\n", Name(service.algorithm), service.seconds / kUs);
}

int Operations(const OperationsOptions& options) {
  const plan::OperationNetwork network = NetworkOf(options);
  if (Status status = CheckOperationNetwork(network); !status) {
    return Fail("operations", status.error(), kExitUsage);
  }
  Json rows = Json::array();
  if (!options.json) PrintHeads();
  for (const Collective kind : plan::kOperations) {
    for (const double bytes : options.bytes) {
      const auto costs = OperationCosts(kind, network, bytes);
      if (options.json) {
        rows.push_back(RowJson(kind, bytes, costs));
      } else {
        PrintRow(kind, bytes, costs);
      }
    }
  }
  if (options.json) fmt::print("{}\n", rows.dump(1));
  return kExitOk;
}

}  // namespace

void AddOperations(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<OperationsOptions>();  // owned by the subcommand's callback
  CLI::App* command =
      app.add_subcommand("operations", "Predict single operations by algorithm, from lanes' lines");
  const auto not_negative = Between(0.0, 1e15, "0 or more");
  command->add_option("--nodes", options->nodes, "number of nodes")
      ->check(Between(1U, plan::kRanksMax));
  command->add_option("--ranks-per-node", options->ranks_per_node, "ranks on each node")
      ->check(Between(1U, plan::kRanksMax));
  command->add_option("--startup-us", options->startup_us, "startup of a step between nodes, us")
      ->check(not_negative);
  command->add_option("--ns-per-byte", options->ns_per_byte, "time of a byte that a node sends, ns")
      ->check(not_negative);
  command
      ->add_option("--in-node-startup-us", options->in_node_startup_us,
                   "startup of a stage inside a node, us")
      ->check(not_negative);
  command
      ->add_option("--in-node-ns-per-byte", options->in_node_ns_per_byte,
                   "time of a byte of an all-reduce among the ranks of a node, ns")
      ->check(not_negative);
  command->add_option("--block-bytes", options->block_bytes, "size of the blocks between nodes")
      ->check(Between(1.0, kBytesMax, "1 or more"));
  command
      ->add_option(
          "--bytes", options->bytes,
          "sizes: of the tensor that each rank gives; of all_gather and scatter, that it gets")
      ->check(Between(0.0, kBytesMax, "0 or more"));
  command->add_flag("--json", options->json, "print a JSON array instead of a table");
  command->callback([options, &exit_code] { exit_code = Operations(*options); });
}

}  // namespace headrace::plan::tool
