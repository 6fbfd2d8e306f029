// The sends and receives of one group. Each is between this node and one other, and independent of
// the order of the group's collectives.
//
// A send is cut into pieces; at most kPiecesPerPeer of them are in flight to a peer. A receive
// takes its pieces in any order, directly into its memory. A send waits only for the links, because
// its receive is posted before it begins (network.h), and a receive waits only for its send. They
// never delay a piece of a collective by waiting, and the pacer sends their messages first.
//
// A receive announces itself to its send by a message without bytes, and the send holds its pieces
// until that has arrived. Announcements that arrive before the send is posted are kept, for each
// peer as many as it may have receives open. The first piece of a send goes at once, so that a
// short message does not wait for that round trip. It is kept where it arrives before its receive
// is posted; of a peer at most kUnmetMax are there or on their way. An announcement gives that
// right back, for its send and for those before it, whose receives will not be posted any more.
//
// Part of Group, on the lane's thread. The wire's calls only record what happened; Push finds what
// is to be sent, End what has ended. Allocates only when a receive with more pieces than any before
// is posted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "transport/exchange/send_pacer.h"
#include "transport/exchange/wire.h"
#include "transport/network.h"

namespace headrace::transport {

class PointToPoint {
 public:
  static constexpr std::uint32_t kOpenMax = 64;  // sends, and as many receives
  static constexpr std::uint32_t kPiecesPerPeer = 16;
  // First pieces to a peer that it was not known to have a receive for.
  static constexpr std::uint32_t kUnmetMax = 4;

  // `options` outlives it, as do the others. Pieces have at most `piece_size` bytes.
  PointToPoint(Wire& wire, SendPacer& pacer, NetworkCounters& counters, const GroupOptions& options,
               std::uint16_t slot, std::size_t piece_size);

  // The wire's tokens that are ours, and not those of collectives.
  static bool IsOurs(std::uint64_t token) { return token >> 63 != 0; }
  // Whether a message is one of ours; what else it says is checked by Announced.
  static bool IsOurs(const MessageHeader& header) { return IsSendOrReceive(header.kind); }

  void OpenLink(std::uint32_t member, LinkId link, const std::string& address);

  // ---- from the lane ----
  bool HasRoom(Collective kind) const { return (kind == kSend ? sends_ : receives_) < kOpenMax; }
  void Post(const Transfer& transfer);
  bool Has(std::uint64_t token) const { return Find(token) != nullptr; }
  void Cancel(std::uint64_t token);
  // See Transport::Missing.
  std::uint64_t Missing(std::uint64_t token) const;

  // ---- from the wire ----
  // Takes or drops the message, whose sender is another member. Returns what is wrong with it when
  // its sender contradicts the receive.
  std::optional<std::string> Announced(const MessageHeader& header, std::size_t size,
                                       ArrivalId arrival);
  // The member that the message was for, or from.
  std::uint32_t Sent(std::uint64_t token, Code code);
  std::uint32_t Received(std::uint64_t token, Code code);
  std::uint64_t messages_moving() const { return messages_moving_; }

  // ---- from DoWork ----
  struct Mismatch {
    std::uint32_t member = 0;
    std::uint64_t position = 0;
    std::string text;
  };
  // Gives the pacer what each peer has room for, and receives what waits for what was posted since.
  // Returns what is wrong with that where its sender contradicts the receive.
  std::optional<Mismatch> Push(TimeNs now);
  void OnTurn(std::uint16_t item);
  // The group's links close: takes back what waits for its turn, and ends everything once the wire
  // has let go of it.
  void Break();
  void End(TimeNs now, const Error* failure, std::vector<Completion>& completions);
  bool empty() const { return open_.empty(); }

 private:
  struct Open {
    bool used = false;
    bool receives = false;
    bool cancelled = false;
    bool meets = false;
    bool met = false;  // of a send: its receive is there; of a receive: it has said so
    std::uint64_t token = 0;
    std::uint64_t position = 0;
    std::uint32_t member = 0;
    DType dtype = DType::kUInt8;
    std::uint64_t count = 0;
    std::byte* memory = nullptr;
    std::uint64_t bytes = 0;
    std::uint32_t pieces_count = 0;
    std::uint32_t pushed = 0;         // pieces of a send: given to the pacer or the wire
    std::uint32_t sent = 0;           // of which: given to the wire
    std::uint32_t on_wire = 0;        // messages that the wire has
    std::uint32_t ended = 0;          // pieces
    std::vector<std::uint64_t> came;  // a bit for each piece of a receive that was accepted
    TimeNs begin_ns = kNever;

    // Pieces of a send that wait for their turn.
    std::uint32_t waiting() const { return pushed - sent; }
  };
  struct Link {
    LinkId id = 0;
    SendPacer::FlowId flow = 0;
    std::uint32_t pieces = 0;  // at the pacer or on the wire
    bool open = false;
  };
  // A message of, or for, another node.
  struct Name {
    std::uint32_t member = 0;
    std::uint64_t position = 0;

    friend bool operator==(const Name&, const Name&) = default;
  };
  // A first piece that arrived before its receive was posted.
  struct Unmet {
    Name name;
    MessageHeader header;
    std::size_t size = 0;
    ArrivalId arrival = 0;
  };

  const Open* Find(std::uint64_t token) const;
  Open* FindReceive(std::uint32_t sender, std::uint64_t position);
  std::uint64_t TokenOf(std::uint16_t index, bool receive, std::uint32_t piece) const;
  Open& Of(std::uint64_t token, bool receive);
  std::size_t SizeOfPiece(const Open& open, std::uint32_t piece) const;
  MessageHeader HeaderOf(const Open& open, Collective kind, std::uint32_t piece) const;
  void Send(std::uint16_t index);
  void SendReady(std::uint16_t index);
  // Whether the first piece of a send may go before its receive is known to be there.
  bool MayGoUnmet(const Open& open) const;
  // Accepts a piece, or says what is wrong with it.
  std::optional<std::string> AcceptPiece(Open& open, const MessageHeader& header, std::size_t size,
                                         ArrivalId arrival);
  std::optional<std::string> Keep(const MessageHeader& header, std::size_t size, ArrivalId arrival);
  std::optional<Unmet> PopKept(const Name& name);
  void DropKeptBefore(const Name& name);
  // A receive of another node says that it is there.
  std::optional<std::string> OnReady(const MessageHeader& header);
  bool IsDue(const Open& open) const {
    return !open.receives && !open.cancelled && (!open.meets || open.met);
  }

  Wire& wire_;
  SendPacer& pacer_;
  NetworkCounters& counters_;
  const GroupOptions& options_;
  std::uint16_t slot_;
  std::size_t piece_size_;
  std::vector<Link> links_;  // by member
  std::vector<Open> places_;
  std::vector<std::uint16_t> free_;
  std::vector<std::uint16_t> open_;  // in the order of the posts
  std::vector<Name> early_;          // receives of other nodes whose sends are not posted yet
  std::vector<Name> sent_unmet_;  // first pieces that were given to the pacer before they were met
  std::vector<Unmet> kept_unmet_;
  std::uint64_t meeting_end_ = 0;    // sends of lower positions that meet were posted
  std::uint64_t receiving_end_ = 0;  // likewise receives
  std::uint32_t sends_ = 0;
  std::uint32_t receives_ = 0;
  std::uint64_t messages_moving_ = 0;
  bool broken_ = false;
};

}  // namespace headrace::transport
