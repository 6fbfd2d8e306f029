// Several hand-driven nodes and a simulated network between them, in one process, on one thread, in
// virtual time. The test, in control's place, brings jobs up; everything below that is the
// service's own code: dispatch, queue, lanes, exchange.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/hand_driven_node.h"
#include "tests/support/loopback/simulated_wire.h"
#include "tests/support/observed_network.h"
#include "transport/exchange/exchange.h"
#include "transport/rails/rail_wire.h"

namespace headrace::support {

struct ClusterSpec {
  std::uint32_t nodes_count = 2;
  transport::SimulatedNetworkOptions network{};
  MakeTransport make = Loopback({});
  std::uint64_t credit_bytes = std::uint64_t{1} << 20;
  transport::ExchangeOptions exchange{.name = "net0"};
  const transport::Gpus* gpus = nullptr;  // that every node has; outlive the cluster
  std::uint32_t rails_count = 1;          // networks, a lane each
  bool rails_stand_in = false;            // each lane's sends take another when its own is gone
  std::uint32_t nccl_lanes = 0;           // JobNodes::nccl_lanes
  std::uint32_t verify = 0;               // JobNodes::verify
  std::uint32_t servers_count = 0;        // the last nodes, which have no ranks
  // What a lane of the node encodes on GPUs with, for each one anew; it may be null.
  std::function<std::shared_ptr<transport::DeviceCodec>(std::size_t node)> device_codec{};
};

class HandDrivenCluster {
 public:
  explicit HandDrivenCluster(const ClusterSpec& spec);

  HandDrivenNode& node(std::size_t index) { return *nodes_[index]->node; }
  std::size_t nodes_count() const { return nodes_.size(); }
  transport::SimulatedNetwork& network() { return network_; }
  transport::Exchange& exchange(std::size_t index, std::size_t rail = 0) {
    return *nodes_[index]->exchanges[rail];
  }
  // What the node's first lane between nodes sees; notices go by that one.
  ObservedNetwork& observed(std::size_t index) { return *nodes_[index]->observed.front(); }
  // "a", "b", ...
  static std::string NameOf(std::size_t index) {
    return std::string(1, static_cast<char>('a' + index));
  }

  // The options of the job's group on each lane.
  static std::uint64_t KeyOf(JobId job) { return 0x1234567812345678 + job.value; }

  // Opens the job's links on every node and tells each that its job is formed; `ranks` by node.
  void Form(const JobSpec& job, const std::vector<std::vector<std::uint32_t>>& ranks,
            std::uint64_t block_bytes = 1024);
  void OpenLinks(const JobSpec& job, std::uint32_t nodes_count);
  void TellFormed(std::size_t node, const JobSpec& job,
                  const std::vector<std::vector<std::uint32_t>>& ranks, std::uint64_t block_bytes);
  // What control does after a failure.
  void CloseLinks(std::size_t node, JobId job, const std::string& cause);

  // The machine is gone: nothing of it moves any more.
  void Vanish(std::size_t node, transport::Silence silence);
  bool vanished(std::size_t node) const { return nodes_[node]->vanished; }
  // A new service in the place of one that has vanished, under another name on the network.
  void Replace(std::size_t node, const std::string& wire_name);
  // By rail.
  const std::vector<std::string>& addresses(std::size_t node) const { return addresses_[node]; }
  std::uint32_t rails_count() const { return spec_.rails_count; }
  // What the network calls the node's wire of that rail: where rails stand in, the lane's wire over
  // its `next`-th in turn.
  std::string WireName(std::size_t node, std::size_t rail, std::size_t next = 0) const;
  // Where rails stand in: one of the networks carries nothing between two nodes, for all lanes.
  void CutRail(std::size_t one, std::size_t other, std::size_t rail, transport::Silence silence);
  void MendRail(std::size_t one, std::size_t other, std::size_t rail);

  // The service's process stands still: none of its actors runs until it goes on, then at the time
  // that it is by then.
  void StandStill(std::size_t node) { nodes_[node]->stands_still = true; }
  void Resume(std::size_t node);

  // Lets everything happen that is due within `time_ns`.
  void Advance(TimeNs time_ns);
  // Goes to that time at once, which must not be beyond NextDue, and lets all nodes work.
  void StepTo(TimeNs now);
  // When there is something to do next: what comes over the network, a deadline, a node's own lane.
  TimeNs NextDue();
  TimeNs now() const { return network_.now(); }

 private:
  struct Node {
    std::string wire_name;
    std::vector<std::unique_ptr<transport::RailWire>> wires;      // by rail, where they stand in
    std::vector<std::unique_ptr<transport::Exchange>> exchanges;  // by rail
    std::vector<std::unique_ptr<ObservedNetwork>> observed;       // of each
    std::unique_ptr<HandDrivenNode> node;
    bool vanished = false;
    bool stands_still = false;

    bool Runs() const { return !vanished && !stands_still; }
  };

  template <typename Visit>
  void ForEachLaneOn(std::size_t rail, Visit visit) const;
  transport::Wire& MakeWire(Node& node, std::uint32_t rail);
  std::unique_ptr<Node> MakeNode(std::size_t index, const std::string& wire_name);
  void SettleAll();

  ClusterSpec spec_;
  transport::SimulatedNetwork network_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::unique_ptr<Node>> replaced_;
  std::vector<std::vector<std::string>> addresses_;  // by node and rail
  std::uint64_t wires_count_ = 0;
};

}  // namespace headrace::support
