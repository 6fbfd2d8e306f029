// Chooses the message that is sent next. Stands between the groups of a lane and the wire.
//
// A limited number of bytes for each peer is handed to the wire; further messages wait here, where
// their order can still be chosen. When there is room, the group with the highest priority that has
// a message for the peer sends. Among groups of equal priority it is the one with the fewest bytes
// for its weight (start-time fair queueing), counted over all peers, because they share this node's
// network. A group that had nothing to send saves up only a few turns. A message that has waited
// for kPatience goes once before those of higher rank. A peer that takes no messages delays only
// its own. Within one group and peer the more urgent flow goes first, or, if the group's flows go
// in turn, the one whose message has waited longest.
//
// Pure: time is set by AdvanceTo, and room is freed only by Ended. OpenFlow allocates all memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ipc/base/clock.h"
#include "transport/network.h"

namespace headrace::transport {

class SendPacer {
 public:
  static constexpr std::size_t kGroupsMax = 64;
  static constexpr TimeNs kPatience = kSecond;
  // A full peer that has taken nothing for so long is called stuck.
  static constexpr TimeNs kStuckAfter = 100 * kMillisecond;
  // What a message costs beside its bytes, so that one without bytes is no free turn.
  static constexpr std::size_t kMessageCost = 128;

  using FlowId = std::uint16_t;  // what a group has for one of its members
  enum class Urgency : std::uint8_t { kUsual, kSoon, kFirst };
  struct Turn {
    std::uint16_t group = 0;
    std::uint16_t member = 0;
    std::uint16_t item = 0;
    Urgency urgency = Urgency::kUsual;
  };

  static constexpr std::size_t kPeerBytesMax = std::size_t{1} << 32;

  explicit SendPacer(std::size_t peer_bytes_max)
      : peer_bytes_max_(std::min(peer_bytes_max, kPeerBytesMax)) {}

  // `group` is a number below kGroupsMax whose flows are closed. Flows to one address are to one
  // peer. At most `items_max` messages of the flow wait at a time.
  FlowId OpenFlow(std::uint16_t group, std::uint16_t member, const std::string& address,
                  std::size_t items_max, Urgency urgency = Urgency::kUsual);
  void CloseFlows(std::uint16_t group);
  void SetShare(std::uint16_t group, const Share& share);

  void AdvanceTo(TimeNs now) { now_ = now; }
  // A message waits: `item` comes back in its turn.
  void Push(FlowId flow, std::uint16_t item, std::size_t size);
  // The next message that goes to the wire now, or nothing until an Ended or a Push.
  std::optional<Turn> Next();
  // The wire has done with a message that had its turn.
  void Ended(FlowId flow, std::size_t size);
  // A message that goes past the pacer, and counts all the same.
  void Charge(std::uint16_t group, std::size_t size);
  // Takes a waiting message of the flow back; nothing when there is none.
  std::optional<std::uint16_t> Withdraw(FlowId flow);

  bool IsStuck(FlowId flow) const;

 private:
  struct Item {
    std::uint32_t size = 0;
    std::uint16_t number = 0;
  };
  struct Flow {
    bool open = false;
    std::uint16_t group = 0;
    std::uint16_t member = 0;
    std::uint16_t peer = 0;
    Urgency urgency = Urgency::kUsual;
    std::vector<Item> items;  // a ring
    std::size_t first = 0;
    std::size_t count = 0;
    TimeNs since_ns = 0;  // when its first message became the first
  };
  struct Peer {
    std::string address;
    std::vector<FlowId> flows;  // none: the place is free
    std::size_t bytes_out = 0;  // given to the wire and not sent
    std::uint32_t waiting_count = 0;
    TimeNs moved_ns = 0;  // when the wire last had none or was done with one
  };
  // Bytes by weight, in fixed point. They may wrap: only differences mean something.
  struct Account {
    Share share;
    bool had_turns = false;
    std::uint64_t served = 0;
    std::uint64_t start = 0;  // what `served` was before the last message
    std::uint32_t waiting_count = 0;
    std::uint32_t flows_count = 0;
  };

  bool HasRoom(const Peer& peer) const {
    return peer.waiting_count > 0 && peer.bytes_out < peer_bytes_max_;
  }
  FlowId Choose(const Peer& peer) const;
  bool Precedes(const Flow& flow, const Flow& other) const;
  Item Pop(Flow& flow);
  void Join(Account& account) const;
  std::uint16_t PeerAt(const std::string& address);

  std::size_t peer_bytes_max_;
  TimeNs now_ = 0;
  std::vector<Flow> flows_;
  std::vector<Peer> peers_;
  std::array<Account, kGroupsMax> accounts_;
  std::uint32_t waiting_count_ = 0;
  std::size_t turn_ = 0;  // the peer that is looked at first
};

}  // namespace headrace::transport
