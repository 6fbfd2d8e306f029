// A lane between nodes over NCCL: memory of a GPU, or memory of the host that is pinned for it,
// moves by NCCL; everything else goes over the lane of host memory that this stands in front of,
// which also carries what NCCL needs to meet. One GPU of each node takes part; a service has one
// such lane for each GPU that shall have links of its own.
//
// `devices[self]` says how a transfer moves: kHost, and barriers, over the host's lane, this lane's
// GPU over NCCL. All nodes must say the same of a position; where they do not, the host's lane
// finds transfers that do not match, or NCCL waits until the group is closed.
//
// NCCL carries out a set of ranks' collectives in one order, and a stream what stands in it. Nodes
// may interleave groups and the two orders of a group differently, so each order of each group has
// ranks and a stream of its own (nccl_order.h). Those of several run side by side on the GPU, which
// takes no more than `orders_max` of them: CUDA gives streams CUDA_DEVICE_MAX_CONNECTIONS queues,
// and streams that share one would wait for each other; kernels that wait for other nodes must all
// have their place on the GPU's multiprocessors (NcclOrdersThatFit).
//
// Results are the same bits on every node, in NCCL's order of sums (nccl_transport.h). Shares among
// groups (SetShare) hold on the host's lane only: NCCL knows none. Bytes are counted together with
// the host's lane's (nccl_order.h says which); messages are that lane's alone.
// Failure, Cancel and CloseGroup end a group as a whole, by aborting its ranks: transfers end with
// the cause as soon as the GPU has dropped them, within `abort_timeout_ns`. NCCL checks no counts:
// a node that posts something else is not found out before the group is closed.
//
// The lane's thread. NCCL wakes nobody: while something of it is open, NextLook says when to look.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/memory/gpus.h"
#include "transport/nccl/nccl_order.h"
#include "transport/nccl/nccl_transport.h"
#include "transport/network.h"
#include "transport/poll_timer.h"

namespace headrace::transport {

// Queues out of the 32 that CUDA_DEVICE_MAX_CONNECTIONS gives; the others are for copies, the lane
// inside the node and NCCL's own streams.
inline constexpr std::uint32_t kNcclOrdersMax = 24;
// One group has two orders of positions.
inline constexpr std::uint32_t kNcclOrdersMin = 2;

// How many orders may run side by side on a GPU where each, and the lane inside the node beside
// them, has `ctas` blocks of threads, of which a multiprocessor holds one. A kernel that found no
// place would wait for others to end, which wait for other nodes, which may wait for this one.
// `ctas` 0: NCCL's own choice, which is not known; then as many as there are queues.
constexpr std::uint32_t NcclOrdersThatFit(std::uint32_t multiprocessors_count, std::uint32_t ctas) {
  if (ctas == 0) return kNcclOrdersMax;
  const std::uint32_t at_once = multiprocessors_count / ctas;
  return at_once == 0 ? 0 : std::min(at_once - 1, kNcclOrdersMax);
}

struct NcclNetworkOptions {
  CuDevice device = 0;
  std::uint32_t orders_max = kNcclOrdersMax;  // less where fewer fit the GPU
  std::uint32_t transfers_max = 64;           // of one order of a group
  NcclOptions nccl;
};

class NcclNetwork final : public NetworkTransport {
 public:
  // All outlive this; `host` is used by nobody else. Errors: NcclLibrary::Open's, and blocks of
  // threads with which not even one group's orders fit the GPU.
  static Result<std::unique_ptr<NcclNetwork>> Open(NetworkTransport& host, const Gpus& gpus,
                                                   const NcclNetworkOptions& options);
  // Ends all groups, in bounded time.
  ~NcclNetwork() override;

  // Those of the host's lane, with GPUs' memory beside the host's.
  const Capabilities& capabilities() const override { return capabilities_; }
  [[nodiscard]] PostResult Post(const Transfer& transfer, TimeNs now) override;
  void Cancel(std::uint64_t token) override;
  std::uint64_t Missing(std::uint64_t token) const override;
  bool DoWork(TimeNs now, std::vector<Completion>& completions) override;
  bool PrepareToSleep() override;
  TimeNs NextLook() const override;
  int event_fd() const override { return rail_.host.event_fd(); }

  const std::string& address() const override { return rail_.host.address(); }
  std::string WireNames() const override;
  Status OpenGroup(const GroupOptions& options) override;
  void SetCost(std::uint32_t group, const CostLine& cost) override;
  void SetShare(std::uint32_t group, const Share& share) override;
  void CloseGroup(std::uint32_t group, const std::string& cause) override;
  void SendNotice(std::uint32_t group, std::uint32_t member,
                  std::vector<std::byte> bytes) override {
    rail_.host.SendNotice(group, member, std::move(bytes));
  }
  void DrainNotices(std::vector<Notice>& notices) override { rail_.host.DrainNotices(notices); }
  void DrainMoves(std::vector<MovedLink>& moves) override { rail_.host.DrainMoves(moves); }
  void DrainStaging(std::vector<StagingRequest>& requests) override {
    rail_.host.DrainStaging(requests);
  }
  void SetStaging(std::uint32_t group, const Result<std::byte*>& on_gpus) override {
    rail_.host.SetStaging(group, on_gpus);
  }
  NetworkCounters counters() const override { return counters_; }

 private:
  struct NodeGroup {
    std::uint32_t self = 0;
    std::uint32_t nodes_count = 0;
    std::uint32_t servers_count = 0;
    std::optional<Error> error{};  // what ended it
    // By the highest bit of the position; made by their first transfer.
    std::array<std::unique_ptr<NcclOrder>, 2> orders{};
  };

  NcclNetwork(NetworkTransport& host, const Gpus& gpus, std::unique_ptr<NcclLibrary> library,
              const NcclNetworkOptions& options, std::uint32_t orders_that_fit);
  bool IsNccls(const Transfer& transfer) const;
  std::optional<Error> WhyNot(const NodeGroup& group, const Transfer& transfer) const;
  Result<NcclOrder*> OrderOf(NodeGroup& group, const Transfer& transfer);
  PostResult Refuse(const Transfer& transfer, const Error& error, TimeNs now);
  void End(NodeGroup& group, const Error& error, TimeNs now, bool finish);
  void Close(std::uint32_t group, const std::string& cause, bool finish);
  bool StepGroups(TimeNs now, std::vector<Completion>& completions);
  bool StepOrder(NcclOrder& order, TimeNs now, std::vector<Completion>& completions);
  bool OnIdExchanged(const Completion& completion);
  std::uint64_t Progress() const;

  std::unique_ptr<NcclLibrary> library_;
  NcclRail rail_;
  CuDevice device_;
  std::uint32_t orders_max_;
  std::uint32_t transfers_max_;
  TimeNs patience_ns_;
  Capabilities capabilities_;
  std::map<std::uint32_t, NodeGroup> groups_;
  std::vector<std::unique_ptr<NcclOrder>> leaving_;  // of groups that are closed
  PollTimer poll_timer_;
  std::uint64_t progress_ = 0;     // of all orders, as of the last DoWork
  NcclTraffic traffic_;            // of all that ended well
  NetworkCounters counters_;       // and the host's, as of the last DoWork
  std::vector<Completion> hosts_;  // scratch
  std::vector<Completion> refused_;
  TimeNs now_ = 0;  // of the last call that knew it
};

}  // namespace headrace::transport
