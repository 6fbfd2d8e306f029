// One order of positions of one group of nodes, over NCCL: a set of ranks of its own, one of each
// node, and a stream of its own, so that it waits for the other nodes alone and never for another
// order or group. The set is formed when the first transfer comes: node 0 makes NCCL's id and sends
// it the others over the host's lane, in a broadcast that has that transfer's position and is
// posted in its place there, since the host's lane takes positions in growing order only.
//
// The lane's thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "transport/nccl/nccl_queue.h"
#include "transport/network.h"

namespace headrace::transport {

// What all orders of a lane have in common; all outlive them.
struct NcclRail {
  NetworkTransport& host;  // where they meet
  const NcclLibrary& library;
  const PrimaryContext& context;
  NcclQueueOptions queue;
  std::uint32_t ctas_max = 0;
  TimeNs form_timeout_ns = 60 * kSecond;
};

// Bytes of this node's transfers. NCCL does not tell what it sends, so this is what a transfer must
// move at the least: of an all_reduce 2 (n-1)/n of its bytes in each direction, of the others what
// this node gives or gets.
struct NcclTraffic {
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
};

class NcclOrder final : private NcclGroups {
 public:
  // `nodes_count` nodes have data, this is number `self`. Errors: what a GPU says.
  static Result<std::unique_ptr<NcclOrder>> Make(const NcclRail& rail, std::uint32_t self,
                                                 std::uint32_t nodes_count);

  bool HasRoom() const { return queue_->HasRoom(); }
  // Before the first transfer is added: begins to meet the other nodes for it. kBusy: again later.
  PostResult ExchangeId(const Transfer& transfer, TimeNs now);
  bool empty() const { return queue_->empty(); }
  // Grows with everything that is given out and that ends.
  std::uint64_t progress() const { return queue_->progress(); }
  bool Has(std::uint64_t token) const { return queue_->Has(token); }
  void Add(const Transfer& transfer, std::optional<Error> error);

  // Goes on, and appends ended transfers. Whether anything is open.
  bool Step(TimeNs now, std::vector<Completion>& completions);
  // What ended well since the last call.
  NcclTraffic PopTraffic() { return std::exchange(traffic_, {}); }
  // Takes the end of the meeting; false where it is of something else.
  bool OnIdExchanged(const Completion& completion);

  // What went wrong, once; then all nodes' transfers of the group end.
  const std::optional<Error>& error() const { return error_; }
  // Everything open ends with the error, and what is under way is aborted. Ranks that are idle give
  // the other nodes a moment to end theirs where `finish` says so.
  void End(const Error& error, TimeNs now, bool finish);
  // After End: nothing is left, here or with NCCL.
  bool gone() const;

 private:
  NcclOrder(const NcclRail& rail, std::uint32_t self, std::uint32_t nodes_count)
      : rail_(rail),
        self_(self),
        nodes_count_(nodes_count),
        traffic_due_(rail.queue.transfers_max) {}
  NcclTraffic TrafficOf(const Transfer& transfer) const;
  Result<NcclGroup*> GroupFor(const Transfer& transfer, TimeNs now) override;
  NcclRankMap RankMapOf(const Transfer& transfer) const override {
    return RankMapBetweenNodes(transfer, self_);
  }
  void Lost(NcclGroup& group, const Error& error) override;
  void Form();
  Result<NcclGroup*> PollGroup(TimeNs now);

  const NcclRail& rail_;
  std::uint32_t self_;
  std::uint32_t nodes_count_;
  CudaStream stream_;
  NcclId id_;  // the host's lane writes it while they meet
  NcclTraffic traffic_;
  std::vector<NcclTraffic> traffic_due_;      // of open transfers, a ring
  std::uint64_t first_ = 0;                   // of which so many have ended
  std::uint64_t last_ = 0;                    // and so many were added
  bool begun_ = false;                        // to meet, or it cannot
  std::optional<std::uint64_t> id_exchange_;  // the token, while they meet
  bool has_id_ = false;
  TimeNs begun_ns_ = kNever;  // the forming
  bool ready_ = false;
  bool lost_ = false;  // the group is being aborted by the queue
  std::optional<Error> error_;
  bool ends_ = false;
  std::unique_ptr<NcclGroup> group_;
  std::unique_ptr<NcclQueue> queue_;
};

}  // namespace headrace::transport
