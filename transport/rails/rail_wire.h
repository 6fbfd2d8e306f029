// A wire over several rails: messages that one rail loses are sent again over another.
//
// Each rail is a wire of its own, and the first is the one in use; the others stand by. Messages of
// a link are numbered, and kept until the other end has acknowledged that they have arrived. A Send
// ends then; that of a short message, which is copied, ends when it has left. When a rail to a peer
// fails or falls silent (rail_health.h), unacknowledged messages are sent again over the next rail,
// and the receiver drops those that it already has. Collectives see no loss, so no sum is made
// twice and nodes need no agreement. Each end chooses the rail of its own messages.
//
// Acknowledgements travel with messages in the other direction, or by themselves if there are none:
// at once if the other end waits for them, otherwise within 20 ms. They, and the pings over rails
// that were not used lately, are messages of key 0 on links of their own, which all groups share.
// Their content is checked, and can do no more than a message of that group can: whoever knows a
// group's key counts as its member.
//
// A link that is closed with everything sent continues to acknowledge for a while, since the other
// end may not have received the acknowledgements. Its short messages that were not acknowledged are
// still sent again.
//
// Carries only messages that are eager on each rail (Wire::IsEager).
//
// One thread, which is that of all its rails.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/exchange/wire.h"
#include "transport/rails/rail_address.h"
#include "transport/rails/rail_peers.h"
#include "transport/rails/received_window.h"
#include "transport/slots.h"

namespace headrace::transport {

class RailWire final : public Wire {
 public:
  // Shorter messages are copied, while not more than kCopiesMax of a link are.
  static constexpr std::size_t kCopiedBytesMax = std::size_t{16} << 10;
  static constexpr std::size_t kCopiesMax = 256;
  // So many messages are acknowledged by themselves though more are coming: those that the other
  // end waits for, and the others.
  static constexpr std::uint32_t kWaitedMax = 2;
  static constexpr std::uint32_t kUnwaitedMax = 64;
  static constexpr TimeNs kAcknowledgeAfter = 20 * kMillisecond;
  // A closed link answers for so long.
  static constexpr TimeNs kLingerNs = 2 * kSecond;

  // `rails` are used by nobody else and outlive it; the first is the lane's own. `id` is random.
  RailWire(std::vector<Wire*> rails, std::uint64_t id);
  ~RailWire() override;
  RailWire(const RailWire&) = delete;
  RailWire& operator=(const RailWire&) = delete;

  const std::string& address() const override { return address_; }
  // The rail in use; where the first does not reach all peers, those that stand in, too.
  std::string Names() const override;
  Result<LinkId> Connect(const std::string& address, std::uint64_t key,
                         std::uint16_t member) override;
  void Close(LinkId link) override;
  bool IsEager(std::size_t size) const override;
  void Send(LinkId link, const MessageHeader& header, const std::byte* bytes, std::size_t size,
            std::uint64_t token) override;
  using Wire::Accept;
  void Accept(ArrivalId arrival, std::byte* memory, std::uint64_t token,
              std::size_t whole) override;
  void Drop(ArrivalId arrival) override;
  Result<std::span<std::byte>> AllocateStaging(std::size_t size) override;
  void FreeStaging(std::span<std::byte> memory) override;
  void AdvanceTo(TimeNs now) override { now_ = now; }
  TimeNs NextDeadline() const override;
  bool Progress(WireEvents& events) override;
  bool PrepareToSleep() override;
  // Whoever sleeps watches those of all rails.
  int event_fd() const override { return -1; }

  std::uint64_t dropped_count() const override;
  // Links that are open or still answer.
  std::size_t links_count() const { return links_.taken_count(); }

 private:
  class Ear;  // hears one rail

  enum class LinkState : std::uint8_t {
    kOpen,
    kFailed,    // as was reported
    kAnswers,   // closed, with everything sent: acknowledges what still comes
    kReleased,  // closed: waits for its rails to let go of what was sent
  };

  struct Link {
    LinkState state = LinkState::kOpen;
    std::uint32_t peer = 0;
    std::uint64_t key = 0;
    std::uint16_t member = 0;  // the other end's sender
    RailLinks links;
    // Sends that were not acknowledged, in the order of their numbers; the first `sent_count` of
    // them were given to a rail.
    std::deque<std::uint32_t> unacknowledged;
    std::uint64_t first_sequence = 1;  // of those
    std::size_t sent_count = 0;
    std::size_t copies_count = 0;
    std::size_t open_count = 0;        // sends that are not over
    std::size_t unreported_count = 0;  // whose end was not reported
    ReceivedWindow received;
    std::uint32_t waited_count = 0;  // to be acknowledged, and the other end waits for it
    std::uint32_t unwaited_count = 0;
    TimeNs unwaited_since_ns = kNever;
    std::uint8_t heard_rail = 0;        // that the last message came by
    bool acknowledgement_open = false;  // one has not left yet
    bool is_listed = false;             // in `to_acknowledge_`
    TimeNs answers_until_ns = kNever;
  };

  struct OpenSend {
    std::uint32_t link = 0;
    std::uint64_t token = 0;
    MessageHeader header{};
    const std::byte* bytes = nullptr;
    std::size_t size = 0;
    std::vector<std::byte> copy;  // of the bytes; its capacity stays
    bool copied = false;
    std::uint8_t rail = 0;            // that it was last given to
    std::uint8_t on_rails_count = 0;  // sends of it that rails have not ended
    bool left = false;
    bool acknowledged = false;
    bool reported = false;
    Code given_up = Code::kOk;
    TimeNs sent_ns = 0;
  };

  struct Ended {
    std::uint64_t token = 0;
    Code code = Code::kOk;
  };
  struct Moved {
    LinkId link = 0;
    LinkMove move;
  };
  // What comes in.
  void OnAnnounced(std::size_t rail, const MessageHeader& header, std::size_t size,
                   ArrivalId arrival);
  void OnControl(std::size_t rail, const MessageHeader& header);
  void OnSent(std::uint64_t token, Code code);
  void OnMessageSent(std::uint32_t id, std::size_t rail, Code code);
  void OnLinkFailed(std::size_t rail, LinkId link, const std::string& cause);
  // False, and nothing is done, if so much was never sent.
  bool OnAcknowledged(std::uint32_t id, Link& link, std::uint64_t end);
  void MarkReceived(std::uint32_t id, Link& link, std::size_t rail, bool is_waited);
  std::uint32_t FindLink(std::uint64_t key, std::uint64_t wire_id) const;

  // What goes out.
  void Transmit(Link& link);
  void TransmitOne(Link& link, std::uint32_t id, std::size_t rail);
  void Acknowledge(bool idle);
  bool MustAcknowledge(const Link& link, bool idle) const;
  static void SetAcknowledged(Link& link);

  // What fails, comes back and ends.
  void HandleAnswers();
  void HandleFailures();
  void FailRail(std::uint32_t peer_id, std::size_t rail, const std::string& cause);
  void MoveLink(std::uint32_t id, Link& link, std::size_t from, const std::string& cause);
  void SendAgain(Link& link, std::optional<std::size_t> from = {});
  void FailLinks(std::uint32_t peer_id);
  void GiveUp(Link& link, Code code);
  void Settle(std::uint32_t id);
  void Forget(Link& link);
  bool Release(std::uint32_t id);
  bool Deliver(WireEvents& events);

  std::vector<Wire*> rails_;
  std::vector<std::unique_ptr<Ear>> ears_;  // by rail
  std::string address_;
  TimeNs now_ = 0;

  RailPeers peers_;
  Slots<Link> links_;
  Slots<OpenSend> sends_;
  std::map<std::pair<std::uint64_t, std::uint16_t>, std::uint32_t> links_by_name_;
  std::uint64_t dropped_count_ = 0;  // those that no rail has dropped

  std::vector<std::uint32_t> to_acknowledge_;  // links
  std::vector<std::uint32_t> closed_;          // links that are not gone
  std::vector<std::uint32_t> stalled_;         // links with more than the window
  // To be reported.
  std::vector<Ended> ended_;
  std::vector<Ended> reporting_;
  std::vector<std::pair<LinkId, std::string>> failed_links_;
  std::vector<Moved> moved_links_;
  WireEvents* events_ = nullptr;  // inside Progress
};

}  // namespace headrace::transport
