// The collectives of one group: each is cut into pieces, which move round by round, in the same
// order on every node (README.md).
//
// The wire's calls (Announced, Sent, Received) only record what happened and accept messages that
// are due. Advance and Begin make the sums and queue messages at the pacer, which sends them in
// turn.
//
// Part of Group, on the lane's thread. Nothing is allocated after AllocateStaging, except the texts
// of a failure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "transport/exchange/collective_waits.h"
#include "transport/exchange/group_failure.h"
#include "transport/exchange/held.h"
#include "transport/exchange/limits.h"
#include "transport/exchange/open_collectives.h"
#include "transport/exchange/piece_memory.h"
#include "transport/exchange/send_pacer.h"
#include "transport/exchange/server_sums.h"
#include "transport/exchange/wire.h"
#include "transport/network.h"

namespace headrace::transport {

class Collectives {
 public:
  // `options` and `failure` outlive it, as do the others. `failure` is noted here where a message
  // makes no sense, and read: a group that has failed begins nothing.
  Collectives(Wire& wire, SendPacer& pacer, NetworkCounters& counters, GroupFailure& failure,
              const ExchangeOptions& exchange, const GroupOptions& options, std::uint16_t slot,
              ServerSums& server_sums);
  ~Collectives();
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  // Before anything else.
  Status AllocateStaging();
  void OpenLink(std::uint32_t member, LinkId link, const std::string& address);
  std::size_t piece_size_max() const { return limits_.slot_size; }

  // ---- from the lane ----
  void SetCost(const CostLine& cost) {
    choice_.cost = cost;
    memory_.SetSecondsPerByte(cost.s_per_byte);
  }
  // Whether copies go before sums, or as they were posted.
  void SetByUrgency(bool by_urgency) { by_urgency_ = by_urgency; }
  bool HasRoom(std::uint64_t position, Collective kind) const {
    return open_.HasRoom(position, kind);
  }
  void Post(const Transfer& transfer);
  // Null where no such transfer of this node is open.
  const OpenCollective* Find(std::uint64_t token) const {
    return is_server() ? nullptr : open_.FindToken(token);
  }
  // See Transport::Missing; the transfer is open here.
  std::uint64_t Missing(std::uint64_t token) const;

  // ---- from the wire ----
  // Takes or drops the message.
  void Announced(const MessageHeader& header, std::size_t size, ArrivalId arrival);
  void Sent(std::uint64_t token, Code code);
  void Received(std::uint64_t token, Code code);
  // ---- from the GPUs ----
  StagingPin& staging_pin() { return memory_.pin(); }
  bool staging_is_free() const { return memory_.pin().is_free(); }
  std::span<std::byte> staging() const { return memory_.staging(); }
  // GPUs reach the staging, or do not any more, or why they do not.
  void OnStaging(const Result<std::byte*>& on_gpus) {
    dirty_ = true;
    if (const auto error = memory_.OnStaging(on_gpus)) failure_.Set(error->code(), error->text());
  }
  // Something of the codec's has ended.
  void OnCodec();
  // Pieces that wait for a GPU, and matrices.
  std::uint32_t awaiting_count() const { return awaiting_count_; }

  // That the wire has and can move by itself: sends that no receiver has to take, and what is being
  // received.
  std::uint64_t messages_moving() const { return messages_moving_; }

  // ---- from DoWork ----
  bool HasWork() const { return dirty_ || has_ready(); }
  // Pieces whose round has ended.
  bool has_ready() const { return !ready_.empty(); }
  // Goes on with those, up to one sum; returns whether it made one.
  bool Advance();
  // Begins pieces, in their order, while there is room.
  void Begin(TimeNs now);
  // The pacer's turn for what piece `index` has for `member`.
  void OnTurn(std::uint16_t index, std::uint16_t member);
  // Reports transfers that have ended, or that have failed and are out of the wire's reach.
  void End(TimeNs now, std::vector<Completion>& completions);
  bool empty() const { return open_.open_count() == 0; }

  // The group gives up what has come and was not summed yet.
  void ForgetReady() { ready_.clear(); }
  // The group's links close: first, what waits at the pacer is as if it had never been.
  void Withdraw();
  // Then, what was only expected will not come. What the wire still has ends by itself.
  void Break();

 private:
  struct Link {
    LinkId id = 0;
    SendPacer::FlowId flow = 0;
    SendPacer::FlowId flow_of_copies = 0;
    bool open = false;
  };

  std::uint32_t members_count() const {
    return static_cast<std::uint32_t>(options_.members.size());
  }
  bool is_server() const { return options_.self >= choice_.data_count; }
  // What each budget has here. Where servers sum, the others need room for no more than their own
  // pieces.
  std::uint32_t SlotsMax() const {
    return is_server() || options_.servers_count == 0 ? limits_.slots_count : limits_.window;
  }
  SendPacer::FlowId FlowTo(std::uint32_t member, const OpenCollective& collective) const {
    const bool soon = by_urgency_ && OrderOf(collective) == PositionOrder::kCopies;
    return soon ? links_[member].flow_of_copies : links_[member].flow;
  }
  std::uint64_t TokenOf(std::uint16_t piece, bool receive, std::size_t index) const;

  // What comes in.
  void Route(const Message& message);
  void RouteToPiece(const Message& message, std::uint16_t index);
  bool Agrees(const Message& message, const OpenCollective& collective);
  void Hold(const Message& message);
  void Refuse(const Message& message);
  void Disagree(const Message& message, const std::string& what);
  void Accept(const Message& message, std::uint16_t index, std::size_t receive);
  void EndMessage(std::uint16_t index);
  void OnEndedEarly(OpenPiece& piece, std::uint32_t member, const char* direction, Code code) {
    piece.spoiled = true;
    failure_.OnMessageEndedEarly(member, direction, code);
    dirty_ = true;
  }
  void CheckHeld(const OpenCollective& collective);
  void CheckHeld(const OpenCollective& collective, const OpenPiece& piece);

  // What goes on.
  OpenCollective& Open(const CollectiveSpec& spec, std::uint64_t position, const RunWalk& walk);
  void BeginHeld();
  void BeginOf(std::uint32_t orders, TimeNs now);
  void StepFactors(OpenCollective& collective, TimeNs now);
  bool BeginPiece(std::uint16_t collective_index, TimeNs now);
  void BeginRound(std::uint16_t index);
  void Send(std::uint16_t index, std::uint16_t member);
  bool AdvancePiece(std::uint16_t index);
  void EndPiece(std::uint16_t index);

  Wire& wire_;
  SendPacer& pacer_;
  NetworkCounters& counters_;
  GroupFailure& failure_;
  const GroupOptions& options_;
  const std::uint16_t slot_;
  Choice choice_;
  const GroupLimits limits_;
  std::vector<Link> links_;  // by member
  HeldMessages held_;
  OpenCollectives open_;
  PieceMemory memory_;
  CollectiveWaits waits_;

  std::vector<std::uint16_t> ready_;  // pieces whose round has ended
  bool starved_ = false;              // a server holds messages of a transfer it had no room for
  std::uint64_t messages_moving_ = 0;
  std::uint32_t awaiting_count_ = 0;
  bool by_urgency_ = true;
  bool dirty_ = false;   // there is something to do beside `ready_`
  bool broken_ = false;  // by Break
};

}  // namespace headrace::transport
