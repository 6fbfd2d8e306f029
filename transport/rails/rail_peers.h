// The wires at the other ends, as a RailWire knows them: how each is reached over each rail, which
// of these work, and the messages of key 0 that test it.
//
// Those are pings, pongs and acknowledgements. One of each kind is under way for a peer and rail
// (an acknowledgement: for a link) at a time, whatever the other end asks for.
//
// Part of RailWire, on its thread. Calls of rails are only recorded; RailWire handles them at the
// end of its Progress.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/exchange/wire.h"
#include "transport/rails/rail_address.h"
#include "transport/rails/rail_health.h"
#include "transport/slots.h"

namespace headrace::transport {

// A link of each rail, once it was needed.
using RailLinks = std::array<std::optional<LinkId>, kWireRailsMax>;

// What a token of a rail's Send stands for.
enum class RailSend : std::uint8_t { kMessage, kAcknowledgement, kPing, kPong };
struct RailToken {
  RailSend what = RailSend::kMessage;
  std::uint8_t rail = 0;
  std::uint32_t id = 0;

  std::uint64_t Pack() const {
    return std::uint64_t{static_cast<std::uint8_t>(what)} << 48 | std::uint64_t{rail} << 40 | id;
  }
  static RailToken Unpack(std::uint64_t token) {
    return {.what = static_cast<RailSend>(token >> 48),
            .rail = static_cast<std::uint8_t>(token >> 40),
            .id = static_cast<std::uint32_t>(token)};
  }
};

struct RailPeer {
  std::uint64_t wire_id = 0;
  std::vector<std::string> addresses;  // by rail
  RailHealth health;
  RailLinks links;                                // of key 0
  std::array<std::string, kWireRailsMax> causes;  // why a rail is down
  std::uint32_t links_count = 0;                  // of groups
  std::uint64_t waiting_count = 0;                // messages sent and not acknowledged

  std::array<bool, kWireRailsMax> ping_open{};  // one has not left yet
  std::array<bool, kWireRailsMax> pong_open{};
  std::array<std::uint64_t, kWireRailsMax> pinged{};    // the last ping's number, until its pong
  std::array<std::uint64_t, kWireRailsMax> pong_due{};  // the ping to answer; 0: none
};

class RailPeers {
 public:
  struct Failure {
    std::uint32_t peer = 0;
    std::size_t rail = 0;
    std::string cause;
  };
  struct Answer {
    std::uint32_t peer = 0;
    std::size_t rail = 0;
  };

  // `rails` outlive it; `id` is this wire's.
  RailPeers(const std::vector<Wire*>& rails, std::uint64_t id) : rails_(rails), id_(id) {}

  // 0: none. Whoever says another's number and rails of its own is another peer.
  std::uint32_t Find(const RailAddress& address) const;
  std::uint32_t Add(const RailAddress& address);
  void Release(std::uint32_t id);
  // The peer must be there.
  RailPeer& at(std::uint32_t id) { return peers_.At(id); }
  const RailPeer& at(std::uint32_t id) const { return peers_.At(id); }
  bool Has(std::uint32_t id) const { return peers_.Find(id) != nullptr; }
  template <typename See>
  void ForEach(See see) const {
    peers_.ForEach(see);
  }

  // The rail's link among `links`, which is made where there is none. Nothing where that fails, and
  // then the rail has failed.
  std::optional<LinkId> Link(std::uint32_t peer, RailLinks& links, std::size_t rail,
                             std::uint64_t key, std::uint16_t member);
  void CloseLink(std::size_t rail, RailLinks& links) const;

  // All that came over `link` up to `end` is here; its token has `id`. False where nothing was
  // sent.
  bool SendAcknowledgement(std::uint32_t peer, std::size_t rail, std::uint64_t key,
                           std::uint64_t end, std::uint32_t id);
  bool HasPingsToAnswer() const { return !pinged_by_.empty(); }
  void AnswerPings();
  // Asks whom it is time to ask. Appends the peers whose rail in use has fallen silent, and why.
  void Check(TimeNs now, std::vector<Failure>& silent);
  // When Check has something to do, at the earliest.
  TimeNs NextCheck() const { return check_ns_; }
  // The peer's health has changed.
  void CheckLater(const RailPeer& peer) {
    check_ns_ = std::min(check_ns_, peer.health.NextDeadline());
  }

  // ---- while rails call ----
  void OnControlSent(const RailToken& token);
  // A ping or pong; false when it makes no sense.
  bool OnPing(std::uint32_t peer, std::size_t rail, const MessageHeader& header);
  void NoteFailure(std::uint32_t peer, std::size_t rail, std::string cause) {
    failures_.push_back({peer, rail, std::move(cause)});
  }
  // A link of a rail, if it is one of key 0.
  void OnLinkFailed(std::size_t rail, LinkId link, const std::string& cause);

  // ---- at the end of Progress ----
  // One for each peer and rail.
  std::vector<Failure> DrainFailures();
  bool has_failures() const { return !failures_.empty(); }
  std::vector<Answer> DrainAnswers() { return std::exchange(answers_, {}); }

 private:
  bool Send(std::uint32_t peer, std::size_t rail, const MessageHeader& header,
            const RailToken& token);
  void Ping(std::uint32_t id, std::size_t rail, TimeNs now);

  const std::vector<Wire*>& rails_;
  const std::uint64_t id_;
  Slots<RailPeer> peers_;
  std::uint64_t pings_count_ = 0;
  TimeNs check_ns_ = kNever;
  std::vector<Failure> failures_;
  std::vector<Answer> answers_;
  std::vector<std::uint32_t> pinged_by_;
};

// MessageHeader::kind of messages of key 0; `operation_count` is the sending wire's id.
inline constexpr std::uint8_t kRailAcknowledgement = 1;  // `position`: the group's key
inline constexpr std::uint8_t kRailPing = 2;             // `position`: its number
inline constexpr std::uint8_t kRailPong = 3;             // `position`: of the ping

}  // namespace headrace::transport
