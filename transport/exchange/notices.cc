#include "transport/exchange/notices.h"

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::transport {
namespace {

constexpr std::uint64_t kNoticesBit = std::uint64_t{1} << 62;
constexpr std::uint64_t kNoticeReceivedBit = std::uint64_t{1} << 61;
// Stands for the place in the window in a message that carries an acknowledgement only.
constexpr std::uint64_t kNoPlace = 0xff;
static_assert(NoticeLinks::kNoticesWindow < kNoPlace && kNodesMax <= 0x100);

// MessageHeader::round.
constexpr std::uint8_t kIsNotice = 0;
constexpr std::uint8_t kSaysTaken = 1;

constexpr std::uint64_t PlaceOf(std::uint64_t token) { return token & 0xff; }

}  // namespace

NoticeLinks::NoticeLinks(Wire& wire, SendPacer& pacer, NetworkCounters& counters,
                         const GroupOptions& options, std::uint16_t slot)
    : wire_(wire),
      pacer_(pacer),
      counters_(counters),
      options_(options),
      slot_(slot),
      links_(options.members.size()) {}

void NoticeLinks::OpenLink(std::uint32_t member, LinkId link) {
  links_[member] = std::make_unique<Link>();
  links_[member]->id = link;
  links_[member]->open = true;
}

std::uint64_t NoticeLinks::TokenOf(std::uint32_t member, bool received,
                                   std::uint64_t number) const {
  return kNoticesBit | (received ? kNoticeReceivedBit : 0) | std::uint64_t{slot_} << 32 |
         std::uint64_t{member} << 8 | number % kNoticesWindow;
}

std::uint32_t NoticeLinks::MemberOf(std::uint64_t token) {
  return static_cast<std::uint32_t>(token >> 8 & 0xff);
}

void NoticeLinks::Send(std::uint32_t member, std::vector<std::byte> bytes) {
  HR_CHECK(!bytes.empty() && bytes.size() <= kNoticeBytesMax, bytes.size());
  HR_CHECK(member < links_.size() && member != options_.self, member);
  if (broken_ || !links_[member]) return;
  links_[member]->waiting.push_back(std::move(bytes));
}

void NoticeLinks::Push() {
  if (broken_) return;
  for (std::uint32_t member = 0; member < links_.size(); ++member) {
    if (!links_[member]) continue;
    Link& link = *links_[member];
    while (!link.waiting.empty() && link.sent - link.taken < kNoticesWindow) {
      Outgoing& place = link.outgoing[link.sent % kNoticesWindow];
      // The other node has it, and the wire has not said so yet.
      if (place.on_wire) break;
      place.bytes = std::move(link.waiting.front());
      place.on_wire = true;
      link.waiting.pop_front();
      const std::uint64_t number = link.sent++;
      link.said = link.popped;
      pacer_.Charge(slot_, place.bytes.size());
      SendMessage(member, number, place.bytes, TokenOf(member, false, number));
    }
    if (link.popped - link.said >= kNoticesWindow / 2) Confirm(member);
  }
}

void NoticeLinks::Confirm(std::uint32_t member) {
  links_[member]->said = links_[member]->popped;
  SendMessage(member, 0, {}, (TokenOf(member, false, 0) & ~std::uint64_t{0xff}) | kNoPlace);
}

void NoticeLinks::SendMessage(std::uint32_t member, std::uint64_t number,
                              std::span<const std::byte> bytes, std::uint64_t token) {
  ++counters_.messages_sent;
  counters_.bytes_sent += bytes.size();
  ++on_wire_;
  wire_.Send(links_[member]->id,
             {.key = options_.key,
              .epoch = options_.epoch,
              .plan_version = options_.plan_version,
              .position = number,
              .count = links_[member]->popped,
              .kind = kKind,
              .round = bytes.empty() ? kSaysTaken : kIsNotice,
              .root = member,
              .sender = static_cast<std::uint16_t>(options_.self)},
             bytes.data(), bytes.size(), token);
}

std::optional<std::string> NoticeLinks::OnTaken(Link& link, std::uint64_t taken) {
  if (taken > link.sent) return "says that it has more notices than it was sent";
  // One that was overtaken says less.
  link.taken = std::max(link.taken, taken);
  return std::nullopt;
}

std::optional<std::string> NoticeLinks::Announced(const MessageHeader& header, std::size_t size,
                                                  ArrivalId arrival) {
  const bool known = header.sender < links_.size() && links_[header.sender] != nullptr &&
                     header.root == options_.self;
  if (!known || broken_) {
    wire_.Drop(arrival);
    ++counters_.messages_dropped;
    return std::nullopt;
  }
  Link& link = *links_[header.sender];
  if (auto wrong = OnTaken(link, header.count)) {
    wire_.Drop(arrival);
    return wrong;
  }
  if (header.round == kSaysTaken && size == 0) {
    wire_.Drop(arrival);
    ++counters_.messages_received;
    return std::nullopt;
  }
  Incoming& place = link.incoming[header.position % kNoticesWindow];
  if (header.position < link.popped || place.state != Incoming::State::kNone) {
    // It has come already.
    wire_.Drop(arrival);
    ++counters_.messages_dropped;
    return std::nullopt;
  }
  if (header.round != kIsNotice || size == 0 || size > kNoticeBytesMax ||
      header.position - link.popped >= kNoticesWindow) {
    wire_.Drop(arrival);
    return "sends a notice that is out of turn or of no size that one has";
  }
  place.state = Incoming::State::kAccepted;
  place.bytes.resize(size);
  ++on_wire_;
  wire_.Accept(arrival, place.bytes.data(), TokenOf(header.sender, true, header.position));
  return std::nullopt;
}

std::uint32_t NoticeLinks::Sent(std::uint64_t token) {
  HR_CHECK(on_wire_ > 0 && (token & kNoticeReceivedBit) == 0, token);
  --on_wire_;
  if (PlaceOf(token) == kNoPlace) return MemberOf(token);
  Outgoing& place = Of(token).outgoing[PlaceOf(token)];
  HR_CHECK(place.on_wire, token);
  place.on_wire = false;
  return MemberOf(token);
}

std::uint32_t NoticeLinks::Received(std::uint64_t token, Code code) {
  HR_CHECK(on_wire_ > 0 && (token & kNoticeReceivedBit) != 0, token);
  --on_wire_;
  Incoming& place = Of(token).incoming[PlaceOf(token)];
  HR_CHECK(place.state == Incoming::State::kAccepted, token);
  place.state = code == Code::kOk ? Incoming::State::kThere : Incoming::State::kNone;
  if (code != Code::kOk) return MemberOf(token);
  ++counters_.messages_received;
  counters_.bytes_received += place.bytes.size();
  return MemberOf(token);
}

void NoticeLinks::Pop(std::vector<Notice>& notices) {
  for (std::uint32_t member = 0; member < links_.size(); ++member) {
    if (!links_[member]) continue;
    Link& link = *links_[member];
    for (;;) {
      Incoming& place = link.incoming[link.popped % kNoticesWindow];
      if (place.state != Incoming::State::kThere) break;
      place.state = Incoming::State::kNone;
      ++link.popped;
      notices.push_back({.group = options_.group,
                         .member = member,
                         .bytes = std::exchange(place.bytes, {}),
                         .failure = {}});
    }
  }
}

void NoticeLinks::Break() {
  broken_ = true;
  for (const auto& link : links_) {
    if (link) link->waiting.clear();
  }
}

}  // namespace headrace::transport
