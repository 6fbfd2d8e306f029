// Collectives between nodes, over any wire.
//
// A transfer is cut into pieces, a piece moves in rounds by its schedule (collective_schedule.h),
// and the transfer's group has the state (group.h). This class is the entry point: it finds the
// group of a post or a message, and divides the thread's time among groups, one sum at a time.
//
// Used on the lane's thread only.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "transport/exchange/flow_meter.h"
#include "transport/exchange/group.h"
#include "transport/exchange/limits.h"
#include "transport/exchange/send_pacer.h"
#include "transport/exchange/served_residuals.h"
#include "transport/exchange/server_sums.h"
#include "transport/exchange/wire.h"
#include "transport/network.h"
#include "transport/poll_timer.h"

namespace headrace::transport {

class Exchange final : public NetworkTransport, private WireEvents {
 public:
  static constexpr std::size_t kGroupsMax = SendPacer::kGroupsMax;

  // `wire` is used by nobody else and outlives the exchange. What servers leave out of sums is kept
  // in `residuals`, which the lanes of a service share; null: in memory of the exchange's own.
  Exchange(Wire& wire, const ExchangeOptions& options,
           std::shared_ptr<ServedResiduals> residuals = nullptr);
  // Reads and writes no transfer's memory, and takes that of open ones out of the wire's reach. A
  // wire whose device moves bytes without a copy may be at work until this returns: then what a
  // transfer uses stays mapped until the exchange is gone.
  ~Exchange() override;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  const Capabilities& capabilities() const override { return capabilities_; }
  [[nodiscard]] PostResult Post(const Transfer& transfer, TimeNs now) override;
  // What half of the nodes have moved cannot be taken back: ends all transfers of its group.
  void Cancel(std::uint64_t token) override;
  std::uint64_t Missing(std::uint64_t token) const override;
  TimeNs FlowedNs() const override { return flow_.flowed_ns(); }
  bool DoWork(TimeNs now, std::vector<Completion>& completions) override;
  bool PrepareToSleep() override;
  TimeNs NextLook() const override {
    return std::min(wire_.NextDeadline(), codec_timer_.next_ns());
  }
  int event_fd() const override { return wire_.event_fd(); }

  const std::string& address() const override { return wire_.address(); }
  std::string WireNames() const override { return wire_.Names(); }
  Status OpenGroup(const GroupOptions& options) override;
  void SetCost(std::uint32_t group, const CostLine& cost) override;
  void SetShare(std::uint32_t group, const Share& share) override;
  void CloseGroup(std::uint32_t group, const std::string& cause) override;
  void SendNotice(std::uint32_t group, std::uint32_t member, std::vector<std::byte> bytes) override;
  void DrainNotices(std::vector<Notice>& notices) override;
  void DrainMoves(std::vector<MovedLink>& moves) override;
  void DrainStaging(std::vector<StagingRequest>& requests) override;
  void SetStaging(std::uint32_t group, const Result<std::byte*>& on_gpus) override;
  NetworkCounters counters() const override;

 private:
  void Announced(const MessageHeader& header, std::size_t size, ArrivalId arrival) override;
  void Sent(std::uint64_t token, Code code) override;
  void Received(std::uint64_t token, Code code) override;
  void LinkFailed(LinkId link, const std::string& cause) override;
  void LinkMoved(LinkId link, const LinkMove& move) override;

  Group* Find(std::uint32_t group) const;
  Group& Of(std::uint64_t token) const;
  bool HasWork() const;
  bool MovesByItself() const;
  bool RunTurns();
  bool PollCodec();
  bool AwaitsCodec() const;

  Wire& wire_;
  ExchangeOptions options_;
  Capabilities capabilities_;
  NetworkCounters counters_;
  SendPacer pacer_;
  const std::shared_ptr<ServedResiduals> residuals_;  // owners: the exchanges of all lanes
  ServerSums server_sums_;
  FlowMeter flow_;
  PollTimer codec_timer_;
  bool has_work_ = false;                       // after the last DoWork
  std::vector<std::unique_ptr<Group>> groups_;  // by slot; null where free, the last is open
  std::size_t turn_ = 0;                        // the slot that may sum next
  std::vector<MovedLink> moves_;                // for DrainMoves
  std::vector<Completion> refused_;             // of posts to groups that are not open
};

}  // namespace headrace::transport
