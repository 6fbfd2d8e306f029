// The notices of one group (network.h): short messages to other nodes, delivered in the order in
// which they were sent.
//
// Messages of one link may overtake each other, so notices are numbered, and an early one is kept
// until those before it have arrived. A node has at most kNoticesWindow notices in flight to
// another node, including those that the receiver has not taken yet. Each message says how many its
// sender has taken; an empty message says so if there is none to send.
//
// Notices bypass the pacer, which only counts them, because the data that they announce cannot move
// before they have arrived.
//
// Part of Group, on the lane's thread. The wire's calls only record what happened.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/exchange/send_pacer.h"
#include "transport/exchange/wire.h"
#include "transport/network.h"

namespace headrace::transport {

class NoticeLinks {
 public:
  static constexpr std::uint32_t kNoticesWindow = 32;
  // MessageHeader::kind; no transfer is of that kind.
  static constexpr std::uint8_t kKind = 0xf0;

  // `options` outlives it, as do the others.
  NoticeLinks(Wire& wire, SendPacer& pacer, NetworkCounters& counters, const GroupOptions& options,
              std::uint16_t slot);

  // The wire's tokens that are ours.
  static bool IsOurs(std::uint64_t token) { return token >> 62 == 1; }
  static bool IsOurs(const MessageHeader& header) { return header.kind == kKind; }

  void OpenLink(std::uint32_t member, LinkId link);

  // ---- from the lane ----
  // What the other node has no room for waits. Nothing once the links are closed.
  void Send(std::uint32_t member, std::vector<std::byte> bytes);
  // Appends what has come and whose turn it is.
  void Pop(std::vector<Notice>& notices);

  // ---- from the wire ----
  // Takes or drops the message, whose sender is another member. Returns what is wrong with it.
  std::optional<std::string> Announced(const MessageHeader& header, std::size_t size,
                                       ArrivalId arrival);
  // The member that the message was for, or from.
  std::uint32_t Sent(std::uint64_t token);
  std::uint32_t Received(std::uint64_t token, Code code);

  // ---- from DoWork ----
  // Gives the wire what the other nodes have room for.
  void Push();
  // The group's links close.
  void Break();
  // The wire has nothing of ours.
  bool empty() const { return on_wire_ == 0; }

 private:
  struct Outgoing {
    std::vector<std::byte> bytes;
    bool on_wire = false;
  };
  struct Incoming {
    enum class State : std::uint8_t { kNone, kAccepted, kThere };

    State state = State::kNone;
    std::vector<std::byte> bytes;
  };
  // The notices that this node and one other send each other.
  struct Link {
    LinkId id = 0;
    bool open = false;
    std::deque<std::vector<std::byte>> waiting;
    std::uint64_t sent = 0;   // those below were given to the wire
    std::uint64_t taken = 0;  // of which: the other has said that it has taken them
    std::array<Outgoing, kNoticesWindow> outgoing;  // by number
    std::uint64_t popped = 0;                       // of the other's: those below were taken here
    std::uint64_t said = 0;                         // of which: as the other was told
    std::array<Incoming, kNoticesWindow> incoming;
  };

  std::uint64_t TokenOf(std::uint32_t member, bool received, std::uint64_t number) const;
  Link& Of(std::uint64_t token) { return *links_[MemberOf(token)]; }
  static std::uint32_t MemberOf(std::uint64_t token);
  void SendMessage(std::uint32_t member, std::uint64_t number, std::span<const std::byte> bytes,
                   std::uint64_t token);
  std::optional<std::string> OnTaken(Link& link, std::uint64_t taken);
  void Confirm(std::uint32_t member);

  Wire& wire_;
  SendPacer& pacer_;
  NetworkCounters& counters_;
  const GroupOptions& options_;
  std::uint16_t slot_;
  std::vector<std::unique_ptr<Link>> links_;  // by member; null where there is none
  std::size_t on_wire_ = 0;
  bool broken_ = false;
};

}  // namespace headrace::transport
