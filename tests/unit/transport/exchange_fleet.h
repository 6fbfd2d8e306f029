// Several nodes' exchanges over one simulated network, driven by hand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/contract/members.h"
#include "tests/support/loopback/simulated_wire.h"
#include "transport/exchange/exchange.h"
#include "transport/rails/rail_wire.h"

namespace headrace::transport {

using Contents = std::vector<std::vector<std::byte>>;

inline constexpr Algorithm kAlgorithms[] = {Algorithm::kAuto, Algorithm::kDirectExchange,
                                            Algorithm::kRecursiveDoubling,
                                            Algorithm::kDirectScatter, Algorithm::kRing};
inline constexpr double kNsPerByte = 8;  // 1 Gbit/s

struct FleetOptions {
  std::uint32_t data_count = 2;
  std::uint32_t servers_count = 0;
  Algorithm algorithm = Algorithm::kAuto;
  ExchangeOptions exchange{.piece_size = 4096, .staging_size = std::size_t{32} << 20};
  SimulatedNetworkOptions network{};
  bool opens_group = true;          // group 1
  std::uint32_t rails_count = 1;    // of each node; several: a RailWire over as many wires
  std::uint32_t epoch = 3;          // of the groups
  std::uint64_t residuals_max = 0;  // bytes that a server keeps; 0: no limit
  std::vector<std::shared_ptr<DeviceCodec>> device_codecs{};  // by node; empty: nobody has one
  // Pins staging for GPUs, and says where these find it; and unpins it.
  std::function<Result<std::byte*>(std::span<std::byte>)> pin{};
  std::function<void(std::span<std::byte>)> unpin{};
};

inline std::uint64_t KeyOf(std::uint32_t group) { return 0xABCD'0000'0000ULL + group; }

class Fleet {
 public:
  explicit Fleet(const FleetOptions& options);
  // Staging that is pinned is unpinned before the wires free it.
  ~Fleet();
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  std::uint32_t nodes_count() const { return options_.data_count + options_.servers_count; }
  // "a", "b", ...
  static std::string NameOf(std::uint32_t node) {
    return std::string(1, static_cast<char>('a' + node));
  }
  // What the network calls the node's wire of that rail: "a", "a1", ...
  static std::string RailName(std::uint32_t node, std::size_t rail) {
    return rail == 0 ? NameOf(node) : NameOf(node) + std::to_string(rail);
  }
  Exchange& node(std::uint32_t index) { return *nodes_[index]; }
  // What the node, as a server, has left out of sums.
  ServedResiduals& residuals(std::uint32_t node) { return *residuals_[node]; }
  // The wire of a node that has several rails.
  RailWire& rails(std::uint32_t node) { return *rails_[node]; }
  void CutRail(std::uint32_t one, std::uint32_t other, std::size_t rail, Silence silence) {
    network_->Cut(RailName(one, rail), RailName(other, rail), silence);
  }
  void MendRail(std::uint32_t one, std::uint32_t other, std::size_t rail) {
    network_->Mend(RailName(one, rail), RailName(other, rail));
  }
  SimulatedNetwork& network() { return *network_; }

  void OpenGroup(std::uint32_t group);
  // What node `node` posts for a transfer over all data nodes' memory.
  static Transfer Local(Transfer transfer, std::uint32_t node);
  // The node must accept. The group is 1 unless the transfer says another.
  void Post(std::uint32_t node, const Transfer& transfer);
  void PostEverywhere(const Transfer& transfer);

  bool AllHaveEnded(std::size_t count) const;
  // Lets every node work once; when none has anything to do, time goes on. False at the end of all
  // things.
  bool Step();
  void RunToTheEnd();
  // While it is held, no request for staging is answered.
  void HoldStaging(bool held) { holds_staging_ = held; }
  std::size_t staging_requests_held() const { return staging_.size(); }
  // A node that is gone is not driven any more.
  void Forget(std::uint32_t node) { forgotten_[node] = true; }
  void Destroy(std::uint32_t node) {
    Forget(node);
    nodes_[node].reset();
  }

  const std::vector<Completion>& completions(std::uint32_t node) const {
    return completions_[node];
  }
  void ClearCompletions();

 private:
  struct NodeStaging {
    std::uint32_t node = 0;
    StagingRequest request{};
  };

  Wire* MakeWire(std::uint32_t node);
  bool AnswerStaging();

  FleetOptions options_;
  std::unique_ptr<SimulatedNetwork> network_;
  std::vector<std::unique_ptr<RailWire>> rails_;  // by node, where there are several
  std::vector<Wire*> wires_;
  std::vector<std::shared_ptr<ServedResiduals>> residuals_;  // by node; also the exchange's
  std::vector<std::unique_ptr<Exchange>> nodes_;
  std::vector<bool> forgotten_;
  bool holds_staging_ = false;
  std::vector<NodeStaging> staging_;          // not answered yet
  std::vector<std::span<std::byte>> pinned_;  // of all nodes
  std::vector<std::vector<Completion>> completions_;
};

// A transfer over the data nodes with memory for it.
class FleetTransfer {
 public:
  FleetTransfer(Collective kind, DType dtype, Reduction reduction, std::uint64_t count,
                std::uint32_t data_count, std::uint64_t seed);

  Transfer& transfer() { return transfer_; }
  Members& members() { return members_; }
  // As after the scalar reference.
  std::vector<std::vector<std::byte>> Expected() const;

 private:
  Members members_;
  Transfer transfer_;
};

// Node 0 posts an all_reduce of `values`, which are that GPU's or the host's, in that codec, over
// two nodes; what node 1 sends it for its first piece is `message`.
void SumWithMessage(Fleet& fleet, std::span<float> values, Codec codec,
                    std::vector<std::byte> message, std::int8_t device = kHost);

}  // namespace headrace::transport
