// A group of nodes from the view of one member: its links, its three kinds of traffic (collectives,
// sends and receives, notices), and its failure.
//
// Used on the lane's thread only. The wire calls Announced, Sent, Received and LinkFailed from
// inside Wire::Progress; they only record what happened and accept messages that are due.
// Everything else happens in Step. A group that has failed stays failed: its transfers cannot be
// repaired, because it is unknown which of their bytes have arrived.
//
// Nothing is allocated after Open, except notices and the texts of a failure.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/exchange/collectives.h"
#include "transport/exchange/group_failure.h"
#include "transport/exchange/limits.h"
#include "transport/exchange/notices.h"
#include "transport/exchange/point_to_point.h"
#include "transport/exchange/send_pacer.h"
#include "transport/exchange/server_sums.h"
#include "transport/exchange/wire.h"
#include "transport/network.h"

namespace headrace::transport {

class Group {
 public:
  // `slot` is where the exchange keeps the group; it comes back in the tokens of the wire, and the
  // pacer knows the group by it. `server_sums` is the exchange's, and outlives the group.
  static Result<std::unique_ptr<Group>> Open(Wire& wire, SendPacer& pacer,
                                             NetworkCounters& counters,
                                             const ExchangeOptions& exchange,
                                             const GroupOptions& options, std::uint16_t slot,
                                             ServerSums& server_sums);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const GroupOptions& options() const { return options_; }
  void SetCost(const CostLine& cost) { collectives_.SetCost(cost); }
  void SetShare(const Share& share) {
    collectives_.SetByUrgency(share.by_urgency);
    pacer_.SetShare(slot_, share);
  }

  // ---- from the lane ----
  bool HasRoom(const Transfer& transfer) const {
    return IsSendOrReceive(transfer.kind) ? point_to_point_.HasRoom(transfer.kind)
                                          : collectives_.HasRoom(transfer.position, transfer.kind);
  }
  void Post(const Transfer& transfer);
  bool HasTransfer(std::uint64_t token) const {
    return point_to_point_.Has(token) || collectives_.Find(token) != nullptr;
  }
  void Cancel(std::uint64_t token);
  // See Transport::Missing; the transfer is open here.
  std::uint64_t Missing(std::uint64_t token) const;
  void SendNotice(std::uint32_t member, std::vector<std::byte> bytes);
  void DrainNotices(std::vector<Notice>& notices);
  void Close(const std::string& cause);
  // Closes, and gives up what has come and was not summed yet: from here on no transfer's memory is
  // touched, except by the wire. How transfers ended is not reported.
  void Abandon(const std::string& cause);
  // After Abandon: forgets what the wire has let go of; true when that is all.
  bool Release();
  // Closed, and out of reach of the wire and of GPUs: may be destroyed.
  bool gone() const { return released() && collectives_.staging_is_free(); }

  // ---- from the wire ----
  static std::uint16_t SlotOf(std::uint64_t token) {
    return static_cast<std::uint16_t>(token >> 32);
  }
  void Announced(const MessageHeader& header, std::size_t size, ArrivalId arrival);
  void Sent(std::uint64_t token, Code code);
  void Received(std::uint64_t token, Code code);
  bool HasLink(LinkId link) const { return MemberOf(link).has_value(); }
  std::optional<std::uint32_t> MemberOf(LinkId link) const;
  void LinkFailed(LinkId link, const std::string& cause);

  // ---- from the GPUs ----
  void OnCodec() {
    if (collectives_.awaiting_count() > 0 || !collectives_.empty()) collectives_.OnCodec();
  }
  bool awaits_codec() const { return collectives_.awaiting_count() > 0; }
  void DrainStaging(std::vector<StagingRequest>& requests);
  void OnStaging(const Result<std::byte*>& on_gpus) {
    collectives_.OnStaging(on_gpus);
    dirty_ = true;
  }

  // ---- from DoWork ----
  bool HasWork() const { return dirty_ || collectives_.HasWork(); }
  // That the wire has and can move by itself: sends that no receiver has to take, and what is being
  // received.
  std::uint64_t messages_moving() const {
    return collectives_.messages_moving() + point_to_point_.messages_moving();
  }
  // Goes on with what is ready, up to one sum; returns whether it made one.
  bool Step(TimeNs now, std::vector<Completion>& completions);
  // The pacer's turn for what piece `index` has for `member`, or, of its first urgency, what a send
  // has.
  void OnTurn(std::uint16_t index, std::uint16_t member, bool first);

 private:
  struct Link {
    LinkId id = 0;
    bool open = false;
  };

  Group(Wire& wire, SendPacer& pacer, NetworkCounters& counters, const ExchangeOptions& exchange,
        const GroupOptions& options, std::uint16_t slot, ServerSums& server_sums);
  Status Connect();
  void CloseLinks();
  void End(TimeNs now, std::vector<Completion>& completions);
  void Fail(Code code, std::string cause);
  bool released() const {
    return closed_ && failure_.carried_out() && collectives_.empty() && point_to_point_.empty() &&
           notices_.empty();
  }
  void OnMessageEnded(std::uint32_t member, const char* direction, Code code);
  void Break();

  Wire& wire_;
  SendPacer& pacer_;
  NetworkCounters& counters_;
  GroupOptions options_;
  std::uint16_t slot_;
  std::vector<Link> links_;  // by member
  GroupFailure failure_;     // carried out by the next Step
  Collectives collectives_;
  PointToPoint point_to_point_;
  NoticeLinks notices_;
  bool dirty_ = false;  // Step has something to do beside the collectives'
  bool closed_ = false;
  bool failure_drained_ = false;  // by DrainNotices
};

}  // namespace headrace::transport
