// One group of nodes, as one of its members: its transfers, their pieces, and what is held for
// later.
//
// The lane's thread. The wire's calls come from inside Wire::Progress (Announced, Sent, Received,
// LinkFailed): they keep account, and accept what is due. Everything else, sums and what is to be
// sent, happens in Step; what is to be sent waits at the pacer for its turn. A group that has
// failed stays failed: its transfers cannot be repaired, since nobody knows which of their bytes
// were moved where.
//
// Nothing is allocated after Open, except notices and the texts of a failure.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/exchange/choose.h"
#include "transport/exchange/collective_schedule.h"
#include "transport/exchange/collective_spec.h"
#include "transport/exchange/encoded.h"
#include "transport/exchange/held.h"
#include "transport/exchange/limits.h"
#include "transport/exchange/notices.h"
#include "transport/exchange/partition.h"
#include "transport/exchange/point_to_point.h"
#include "transport/exchange/send_pacer.h"
#include "transport/exchange/staging.h"
#include "transport/exchange/waits.h"
#include "transport/exchange/wire.h"
#include "transport/runs.h"

namespace headrace::transport {

class Group {
 public:
  // `slot` is where the exchange keeps the group; it comes back in the tokens of the wire, and the
  // pacer knows the group by it.
  static Result<std::unique_ptr<Group>> Open(Wire& wire, SendPacer& pacer,
                                             NetworkCounters& counters,
                                             const ExchangeOptions& exchange,
                                             const GroupOptions& options, std::uint16_t slot);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const GroupOptions& options() const { return options_; }
  void SetCost(const CostLine& cost) { choice_.cost = cost; }
  std::uint16_t slot() const { return slot_; }

  // ---- from the lane ----
  bool HasRoom(const Transfer& transfer) const {
    return IsSendOrReceive(transfer.kind) ? point_to_point_.HasRoom(transfer.kind)
                                          : HasRoom(transfer.position);
  }
  void Post(const Transfer& transfer);
  bool HasTransfer(std::uint64_t token) const;
  void Cancel(std::uint64_t token);
  // See Transport::Missing; the transfer is open here.
  std::uint64_t Missing(std::uint64_t token) const;
  void SendNotice(std::uint32_t member, std::vector<std::byte> bytes);
  void TakeNotices(std::vector<Notice>& notices);
  void Close(const std::string& cause);
  // Closes, and gives up what has come and was not summed yet: from here on no transfer's memory is
  // touched, except by the wire. How transfers ended is not reported.
  void Abandon(const std::string& cause);
  // Of a group that was abandoned: forgets what the wire has let go of; true when that is all.
  bool Release();
  // Closed, and out of the wire's reach: may be destroyed.
  bool gone() const {
    return closed_ && broken_ && open_.empty() && point_to_point_.empty() && notices_.empty();
  }

  // ---- from the wire ----
  static std::uint16_t SlotOf(std::uint64_t token) {
    return static_cast<std::uint16_t>(token >> 32);
  }
  void Announced(const MessageHeader& header, std::size_t size, ArrivalId arrival);
  void Sent(std::uint64_t token, Code code);
  void Received(std::uint64_t token, Code code);
  bool HasLink(LinkId link) const;
  void LinkFailed(LinkId link, const std::string& cause);

  // ---- from DoWork ----
  bool HasWork() const { return dirty_ || !ready_.empty(); }
  // That the wire has and can move by itself: sends that no receiver has to take, and what is being
  // received.
  std::uint64_t messages_moving() const {
    return messages_moving_ + point_to_point_.messages_moving();
  }
  // Goes on with what is ready, up to one sum; returns whether it made one.
  bool Step(TimeNs now, std::vector<Completion>& completions);
  // The pacer's turn for what piece `index` has for `member`, or, of its first urgency, what a send
  // has.
  void OnTurn(std::uint16_t index, std::uint16_t member, bool first);

 private:
  // A transfer that is open here.
  struct Move {
    std::uint64_t token = 0;
    std::uint64_t position = 0;
    std::byte* memory = nullptr;
    std::byte* output = nullptr;
    std::byte* residual = nullptr;
    CollectiveSpec spec;
    Pattern pattern = Pattern::kBarrier;
    Partition partition;
    RunWalk walk;                    // over this node's memory, at the next piece
    std::uint32_t next_piece = 0;    // the first that was not begun
    std::uint32_t wanted_end = 0;    // pieces below may begin; a server learns it from messages
    std::uint32_t active_count = 0;  // pieces under way
    TimeNs begin_ns = kNever;
    CodecUse codec{};  // so far

    // Where results belong on a node with data.
    std::byte* Result() const { return spec.kind == Collective::kReduce ? output : memory; }
  };
  enum class Receive : std::uint8_t { kExpected, kAccepted, kEnded };
  struct Piece {
    bool active = false;
    bool spoiled = false;  // a message ended early: waits for the group's end
    std::uint16_t move = 0;
    std::uint32_t number = 0;
    std::uint8_t round = 0;
    std::uint32_t open_count = 0;  // messages of this round that have not ended
    std::uint64_t waits_turn = 0;  // of its sends, by member: those at the pacer
    std::uint64_t is_on_wire = 0;  // and those that the wire has
    Partition::Range range;
    RunWalk walk;           // at the piece's first element
    bool gathered = false;  // of several runs: moves through a slot of its own
    bool encoded = false;   // likewise, as the codec has it
    std::uint16_t own_slot = 0;
    std::uint32_t sent_size = 0;  // of this round's messages
    CollectiveSchedule schedule;
    std::array<Receive, kNodesMax> receives{};
    std::array<std::uint16_t, kNodesMax> slots{};
    std::array<std::uint32_t, kNodesMax> received_sizes{};
  };
  // What each of the two orders of positions has for itself.
  struct Order {
    std::uint32_t moves_open = 0;
    std::uint32_t pieces_active = 0;
    std::size_t slots_taken = 0;
    std::uint64_t positions_end = 0;  // those below were posted here; on servers: are over
    std::vector<std::uint64_t> over;  // on servers: those that are over and not below
  };
  struct Link {
    LinkId id = 0;
    SendPacer::FlowId flow = 0;
    bool open = false;
  };

  Group(Wire& wire, SendPacer& pacer, NetworkCounters& counters, const ExchangeOptions& exchange,
        const GroupOptions& options, std::uint16_t slot);
  Status Connect();
  void CloseLinks();

  std::uint32_t members_count() const {
    return static_cast<std::uint32_t>(options_.members.size());
  }
  bool HasRoom(std::uint64_t position) const {
    return orders_[OrderOf(position)].moves_open < transfers_max_;
  }
  bool is_server() const { return options_.self >= choice_.data_count; }
  std::uint64_t TokenOf(std::uint16_t piece, bool receive, std::size_t index) const;

  // What comes in: group_messages.cc.
  void Route(const Message& message);
  void RouteToPiece(const Message& message, std::uint16_t index);
  bool Agrees(const Message& message, const Move& move);
  void Hold(const Message& message);
  void Refuse(const Message& message);
  void Disagree(const Message& message, const std::string& what);
  void Accept(const Message& message, std::uint16_t index, std::size_t receive);
  void EndMessage(std::uint16_t index);
  void EndedEarly(std::uint32_t peer, const char* what, Code code);
  void CheckHeld(const Move& move);
  void CheckHeld(const Move& move, const Piece& piece);
  bool IsOver(std::uint64_t position) const;
  Move* Find(std::uint64_t position);
  std::optional<std::uint16_t> FindPiece(const Move& move, std::uint32_t number) const;
  std::size_t MessageSize(const Piece& piece, const Round& round) const;
  bool MayHaveSize(const Piece& piece, const Round& round, std::size_t size) const;

  // Whom a transfer waits for: group_waits.cc.
  PieceSpec PieceSpecOf(const Move& move, std::uint32_t piece) const;
  PieceView ViewOf(const Move& move, std::uint32_t piece) const;
  void AddEvidence(const Move& move, const Piece& piece, WaitQuery& query) const;
  void Ask(const Move& move, const Piece& piece, WaitQuery& query) const;

  // What goes on: group_pieces.cc.
  Move& Begin(const CollectiveSpec& spec, std::uint64_t position, const RunWalk& walk);
  void BeginHeld();
  void BeginPieces(TimeNs now);
  bool BeginPiece(std::uint16_t move_index, TimeNs now);
  static std::size_t SlotsOf(const Piece& piece) {
    return piece.schedule.staged_max + std::size_t{piece.gathered || piece.encoded};
  }
  void BeginRound(std::uint16_t index);
  void Send(std::uint16_t index, std::uint16_t member);
  bool Advance(std::uint16_t index);
  std::size_t InputsOf(const Piece& piece, const Round& round, const std::byte* own,
                       std::array<const std::byte*, kNodesMax>& inputs) const;
  void Sum(const Piece& piece, const Round& round);
  void SumEncoded(const Piece& piece, const Round& round);
  bool ReduceLossless(const Piece& piece, const Round& round);
  void DecodeResult(const Piece& piece);
  void Encode(const Piece& piece);
  void CountEncoded(const Piece& piece, const Round& round);
  EncodedRange EncodedRangeOf(const Piece& piece) const;
  std::uint64_t SeedOf(const Move& move) const;
  void Gather(const Piece& piece);
  void Scatter(const Piece& piece);
  void EndPiece(std::uint16_t index);
  void EndMoves(TimeNs now, std::vector<Completion>& completions);
  void Remember(std::uint64_t position);
  std::byte* Own(const Piece& piece) const;
  std::byte* Target(const Piece& piece) const;
  std::byte* Source(const Piece& piece) const;

  void Fail(Code code, std::string cause, bool guess = false);
  void Break();

  Wire& wire_;
  SendPacer& pacer_;
  NetworkCounters& counters_;
  std::string lane_;
  GroupOptions options_;
  std::uint16_t slot_;
  Choice choice_;
  GroupLimits limits_;
  std::uint32_t slots_max_;  // that an order may take here
  std::uint32_t transfers_max_;
  std::vector<Link> links_;  // by member
  Staging staging_;
  HeldMessages held_;
  PointToPoint point_to_point_;
  NoticeLinks notices_;

  std::vector<Move> moves_;
  std::vector<std::uint16_t> free_moves_;
  std::vector<std::uint16_t> open_;  // moves, by position
  std::vector<Piece> pieces_;
  std::vector<std::uint16_t> free_pieces_;
  std::vector<std::uint16_t> ready_;  // pieces whose round has ended
  std::array<Order, kOrdersCount> orders_;
  bool starved_ = false;  // a server holds messages of a transfer it had no room for
  std::uint64_t messages_moving_ = 0;
  bool dirty_ = false;  // Step has something to do beside `ready_`

  // The first cause wins, except over a guess. Carried out by the next Step.
  std::optional<Error> failure_;
  bool failure_is_guess_ = false;
  bool broken_ = false;  // the failure was carried out: links are closed
  bool closed_ = false;
  bool failure_taken_ = false;  // by TakeNotices
};

}  // namespace headrace::transport
