#include "transport/exchange/point_to_point.h"

#include <algorithm>
#include <bit>

#include "ipc/base/check.h"
#include "transport/exchange/collective_schedule.h"
#include "transport/exchange/collective_spec.h"

namespace headrace::transport {
namespace {

constexpr std::uint64_t kOursBit = std::uint64_t{1} << 63;
constexpr std::uint64_t kReceivesBit = std::uint64_t{1} << 62;
// The piece number of the message by which a receive says that it is there.
constexpr std::uint32_t kReadyPiece = UINT32_MAX;
// MessageHeader::round of a first piece that may arrive before its receive is posted.
constexpr std::uint8_t kMayBeUnmet = 1;

constexpr std::uint16_t IndexOf(std::uint64_t token) {
  return static_cast<std::uint16_t>(token >> 48 & 0xff);
}
constexpr std::uint32_t PieceNumberOf(std::uint64_t token) {
  return static_cast<std::uint32_t>(token);
}

}  // namespace

PointToPoint::PointToPoint(Wire& wire, SendPacer& pacer, NetworkCounters& counters,
                           const GroupOptions& options, std::uint16_t slot, std::size_t piece_size)
    : wire_(wire),
      pacer_(pacer),
      counters_(counters),
      options_(options),
      slot_(slot),
      piece_size_(piece_size),
      links_(options.members.size()),
      places_(std::size_t{2} * kOpenMax) {
  static_assert(2 * kOpenMax <= 0x100, "a token has 8 bits for the place");
  HR_CHECK(piece_size > 0);
  free_.reserve(places_.size());
  open_.reserve(places_.size());
  early_.reserve(kOpenMax * options.members.size());
  sent_unmet_.reserve(kUnmetMax * options.members.size());
  kept_unmet_.reserve(kUnmetMax * options.members.size());
  for (std::size_t i = places_.size(); i > 0; --i) {
    free_.push_back(static_cast<std::uint16_t>(i - 1));
  }
}

void PointToPoint::OpenLink(std::uint32_t member, LinkId link, const std::string& address) {
  links_[member] = {.id = link,
                    .flow = pacer_.OpenFlow(slot_, static_cast<std::uint16_t>(member), address,
                                            kPiecesPerPeer, SendPacer::Urgency::kFirst),
                    .pieces = 0,
                    .open = true};
}

void PointToPoint::Post(const Transfer& transfer) {
  const bool receives = transfer.kind == kReceive;
  HR_CHECK(HasRoom(transfer.kind), transfer.token);
  HR_CHECK(transfer.root < transfer.members_count && transfer.root != options_.self, transfer.root);
  HR_CHECK(transfer.count <= kTransferBytesMax / SizeOf(transfer.dtype), transfer.count);
  HR_CHECK(transfer.runs.empty(), transfer.token);
  if (receives) {
    HR_CHECK(FindReceive(transfer.root, transfer.position) == nullptr, transfer.position);
  }
  const std::uint16_t index = free_.back();
  free_.pop_back();
  open_.push_back(index);
  ++(receives ? receives_ : sends_);
  Open& open = places_[index];
  std::vector<std::uint64_t> came = std::move(open.came);
  open = {.used = true,
          .receives = receives,
          .cancelled = broken_,
          .meets = transfer.meets,
          .token = transfer.token,
          .position = transfer.position,
          .member = transfer.root,
          .dtype = transfer.dtype,
          .count = transfer.count,
          .memory = transfer.members[options_.self],
          .bytes = transfer.Bytes(),
          .came = std::move(came)};
  open.pieces_count = static_cast<std::uint32_t>(
      std::max<std::uint64_t>(1, (open.bytes + piece_size_ - 1) / piece_size_));
  open.came.assign(receives ? (open.pieces_count + 63) / 64 : 0, 0);
  if (!open.meets) return;
  if (receives) {
    HR_CHECK(open.position >= receiving_end_, open.position, receiving_end_);
    receiving_end_ = open.position + 1;
    return;
  }
  HR_CHECK(open.position >= meeting_end_, open.position, meeting_end_);
  meeting_end_ = open.position + 1;
  open.met = std::erase(early_, Name{open.member, open.position}) != 0;
}

const PointToPoint::Open* PointToPoint::Find(std::uint64_t token) const {
  for (const std::uint16_t index : open_) {
    if (places_[index].token == token) return &places_[index];
  }
  return nullptr;
}

PointToPoint::Open* PointToPoint::FindReceive(std::uint32_t sender, std::uint64_t position) {
  for (const std::uint16_t index : open_) {
    Open& open = places_[index];
    if (open.receives && open.member == sender && open.position == position) return &open;
  }
  return nullptr;
}

void PointToPoint::Cancel(std::uint64_t token) {
  for (const std::uint16_t index : open_) {
    if (places_[index].token == token) places_[index].cancelled = true;
  }
}

std::uint64_t PointToPoint::Missing(std::uint64_t token) const {
  const Open* const open = Find(token);
  if (open == nullptr || open->cancelled) return 0;
  const Link& link = links_[open->member];
  const bool waits = open->receives || (open->meets && !open->met) ||
                     !wire_.IsEager(SizeOfPiece(*open, 0)) ||
                     (link.open && pacer_.IsStuck(link.flow));
  return waits ? MemberBit(open->member) : 0;
}

std::uint64_t PointToPoint::TokenOf(std::uint16_t index, bool receive, std::uint32_t piece) const {
  return kOursBit | (receive ? kReceivesBit : 0) | std::uint64_t{index} << 48 |
         std::uint64_t{slot_} << 32 | piece;
}

PointToPoint::Open& PointToPoint::Of(std::uint64_t token, bool receive) {
  const std::uint16_t index = IndexOf(token);
  HR_CHECK(index < places_.size() && ((token & kReceivesBit) != 0) == receive, token);
  Open& open = places_[index];
  HR_CHECK(open.used && open.receives == receive && open.on_wire > 0, token);
  return open;
}

std::size_t PointToPoint::SizeOfPiece(const Open& open, std::uint32_t piece) const {
  const std::uint64_t begin = std::uint64_t{piece} * piece_size_;
  return static_cast<std::size_t>(std::min<std::uint64_t>(piece_size_, open.bytes - begin));
}

std::optional<std::string> PointToPoint::Announced(const MessageHeader& header, std::size_t size,
                                                   ArrivalId arrival) {
  if (static_cast<Collective>(header.kind) == kReceive) {
    wire_.Drop(arrival);
    if (size != 0 || header.root != options_.self) {
      ++counters_.messages_dropped;
      return std::nullopt;
    }
    ++counters_.messages_received;
    return OnReady(header);
  }
  Open* const open = FindReceive(header.sender, header.position);
  const bool known = open != nullptr && header.root == options_.self;
  if (known && !broken_ && !open->cancelled) return AcceptPiece(*open, header, size, arrival);
  const bool may_be_unmet = open == nullptr && header.root == options_.self && !broken_ &&
                            header.round == kMayBeUnmet && header.piece == 0 &&
                            header.position >= receiving_end_;
  if (may_be_unmet) return Keep(header, size, arrival);
  // What its receive has been cancelled for, what came twice, or what nobody was asked to send.
  wire_.Drop(arrival);
  ++counters_.messages_dropped;
  return std::nullopt;
}

std::optional<std::string> PointToPoint::AcceptPiece(Open& open, const MessageHeader& header,
                                                     std::size_t size, ArrivalId arrival) {
  const auto drop = [&] {
    wire_.Drop(arrival);
    ++counters_.messages_dropped;
  };
  const bool is_first = header.piece == 0 && open.meets;
  const bool agrees = header.count == open.count && header.piece < open.pieces_count &&
                      static_cast<DType>(header.dtype) == open.dtype &&
                      (header.round == 0 || (header.round == kMayBeUnmet && is_first)) &&
                      header.reduction == 0 && header.codec == 0 && header.codec_parameter == 0 &&
                      header.divisor == 0 && header.root_rank == 0 && header.block_count == 0 &&
                      header.operation_count == 0 && size == SizeOfPiece(open, header.piece);
  if (!agrees) {
    drop();
    return "sends other pieces of a message than this node receives";
  }
  std::uint64_t& came = open.came[header.piece / 64];
  const std::uint64_t bit = std::uint64_t{1} << header.piece % 64;
  if ((came & bit) != 0) {
    drop();
    return std::nullopt;
  }
  came |= bit;
  ++open.on_wire;
  ++messages_moving_;
  const auto index = static_cast<std::uint16_t>(&open - places_.data());
  // A rank reads it, later.
  wire_.Accept(arrival, open.memory + std::uint64_t{header.piece} * piece_size_,
               TokenOf(index, true, header.piece), static_cast<std::size_t>(open.bytes));
  return std::nullopt;
}

std::optional<std::string> PointToPoint::Keep(const MessageHeader& header, std::size_t size,
                                              ArrivalId arrival) {
  const Name name{header.sender, header.position};
  const bool twice = std::ranges::find(kept_unmet_, name, &Unmet::name) != kept_unmet_.end();
  const auto kept = std::ranges::count(kept_unmet_, name.member,
                                       [](const Unmet& unmet) { return unmet.name.member; });
  if (twice || kept == kUnmetMax || size > piece_size_) {
    wire_.Drop(arrival);
    ++counters_.messages_dropped;
    if (twice) return std::nullopt;
    return "sends more of messages that nobody waits for than any node may";
  }
  kept_unmet_.push_back({name, header, size, arrival});
  return std::nullopt;
}

std::optional<std::string> PointToPoint::OnReady(const MessageHeader& header) {
  if (broken_) return std::nullopt;
  const Name early{header.sender, header.position};
  // Receives are posted in this order: those before it are known, or never come.
  std::erase_if(sent_unmet_, [&early](const Name& sent) {
    return sent.member == early.member && sent.position <= early.position;
  });
  for (const std::uint16_t index : open_) {
    Open& open = places_[index];
    if (open.receives || !open.meets || Name{open.member, open.position} != early) continue;
    open.met = true;
    return std::nullopt;
  }
  // Said again, of a send that has ended or is to come.
  if (early.position < meeting_end_ || std::ranges::find(early_, early) != early_.end()) {
    ++counters_.messages_dropped;
    return std::nullopt;
  }
  const auto kept = std::ranges::count(early_, early.member, &Name::member);
  if (kept == kOpenMax) return "waits for more messages at a time than any node may";
  early_.push_back(early);
  return std::nullopt;
}

std::uint32_t PointToPoint::Sent(std::uint64_t token, Code code) {
  if (PieceNumberOf(token) == kReadyPiece) {
    Open& receive = Of(token, true);
    --receive.on_wire;
    if (code != Code::kOk) receive.cancelled = true;
    return receive.member;
  }
  Open& open = Of(token, false);
  const std::size_t size = SizeOfPiece(open, PieceNumberOf(token));
  Link& link = links_[open.member];
  if (wire_.IsEager(size)) {
    pacer_.Ended(link.flow, size);
    --messages_moving_;
  }
  --open.on_wire;
  --link.pieces;
  if (code == Code::kOk) {
    ++open.ended;
  } else {
    open.cancelled = true;
  }
  return open.member;
}

std::uint32_t PointToPoint::Received(std::uint64_t token, Code code) {
  Open& open = Of(token, true);
  --messages_moving_;
  --open.on_wire;
  if (code == Code::kOk) {
    ++open.ended;
    ++counters_.messages_received;
    counters_.bytes_received += SizeOfPiece(open, PieceNumberOf(token));
  } else {
    open.cancelled = true;
  }
  return open.member;
}

std::optional<PointToPoint::Unmet> PointToPoint::PopKept(const Name& name) {
  const auto found = std::ranges::find(kept_unmet_, name, &Unmet::name);
  if (found == kept_unmet_.end()) return std::nullopt;
  const Unmet kept = *found;
  kept_unmet_.erase(found);
  return kept;
}

// Their receives were never posted, and will not be.
void PointToPoint::DropKeptBefore(const Name& name) {
  std::erase_if(kept_unmet_, [&](const Unmet& kept) {
    if (kept.name.member != name.member || kept.name.position > name.position) return false;
    wire_.Drop(kept.arrival);
    ++counters_.messages_dropped;
    return true;
  });
}

bool PointToPoint::MayGoUnmet(const Open& open) const {
  if (open.receives || open.cancelled || !open.meets || open.met || open.pushed > 0) return false;
  return wire_.IsEager(SizeOfPiece(open, 0)) &&
         std::ranges::count(sent_unmet_, open.member, &Name::member) < kUnmetMax;
}

std::optional<PointToPoint::Mismatch> PointToPoint::Push(TimeNs now) {
  if (broken_) return std::nullopt;
  for (const std::uint16_t index : open_) {
    Open& open = places_[index];
    open.begin_ns = std::min(open.begin_ns, now);
    Link& link = links_[open.member];
    if (open.receives && open.meets && !open.met && !open.cancelled) {
      // Before the other node learns that it may send others.
      const auto kept = PopKept({open.member, open.position});
      DropKeptBefore({open.member, open.position});
      const auto wrong = kept ? AcceptPiece(open, kept->header, kept->size, kept->arrival)
                              : std::optional<std::string>();
      if (wrong) return Mismatch{open.member, open.position, *wrong};
      SendReady(index);
    }
    while (open.pushed < open.pieces_count && link.pieces < kPiecesPerPeer) {
      if (!IsDue(open)) {
        if (!MayGoUnmet(open)) break;
        sent_unmet_.push_back({open.member, open.position});
      }
      ++link.pieces;
      const std::size_t size = SizeOfPiece(open, open.pushed++);
      if (wire_.IsEager(size)) {
        pacer_.Push(link.flow, index, size);
      } else {
        // It costs the wire nothing until its receiver takes it.
        pacer_.Charge(slot_, size);
        Send(index);
      }
    }
  }
  return std::nullopt;
}

void PointToPoint::OnTurn(std::uint16_t item) {
  Open& open = places_[item];
  HR_CHECK(open.used && open.waiting() > 0, item);
  if (!open.cancelled) return Send(item);
  Link& link = links_[open.member];
  pacer_.Ended(link.flow, SizeOfPiece(open, open.sent++));
  --link.pieces;
  std::erase(sent_unmet_, Name{open.member, open.position});
}

MessageHeader PointToPoint::HeaderOf(const Open& open, Collective kind, std::uint32_t piece) const {
  return {.key = options_.key,
          .epoch = options_.epoch,
          .plan_version = options_.plan_version,
          .position = open.position,
          .count = open.count,
          .kind = static_cast<std::uint8_t>(kind),
          .dtype = static_cast<std::uint8_t>(open.dtype),
          .root = open.member,
          .piece = piece,
          .sender = static_cast<std::uint16_t>(options_.self)};
}

// It is a word to one node, for which nothing of others has to wait.
void PointToPoint::SendReady(std::uint16_t index) {
  Open& open = places_[index];
  open.met = true;
  ++open.on_wire;
  ++counters_.messages_sent;
  wire_.Send(links_[open.member].id, HeaderOf(open, kReceive, 0), nullptr, 0,
             TokenOf(index, true, kReadyPiece));
}

void PointToPoint::Send(std::uint16_t index) {
  Open& open = places_[index];
  const std::uint32_t piece = open.sent++;
  const std::size_t size = SizeOfPiece(open, piece);
  ++counters_.messages_sent;
  counters_.bytes_sent += size;
  ++open.on_wire;
  if (wire_.IsEager(size)) ++messages_moving_;
  MessageHeader header = HeaderOf(open, kSend, piece);
  if (open.meets && piece == 0) header.round = kMayBeUnmet;
  wire_.Send(links_[open.member].id, header, open.memory + std::uint64_t{piece} * piece_size_, size,
             TokenOf(index, false, piece));
}

void PointToPoint::Break() {
  broken_ = true;
  for (Link& link : links_) {
    if (!link.open) continue;
    while (const auto item = pacer_.Withdraw(link.flow)) {
      --places_[*item].pushed;
      --link.pieces;
    }
    link.open = false;
  }
  for (const Unmet& kept : kept_unmet_) wire_.Drop(kept.arrival);
  kept_unmet_.clear();
  sent_unmet_.clear();
  for (const std::uint16_t index : open_) places_[index].cancelled = true;
}

// A transfer that has all of its pieces ended well, whatever came after. A send that meets its
// receive does not end before that: until then the two may disagree.
void PointToPoint::End(TimeNs now, const Error* failure, std::vector<Completion>& completions) {
  for (std::size_t i = 0; i < open_.size();) {
    Open& open = places_[open_[i]];
    const bool met = open.receives || !open.meets || open.met;
    const bool done = met && open.ended == open.pieces_count;
    if (open.on_wire > 0 || (!done && (!open.cancelled || open.waiting() > 0))) {
      ++i;
      continue;
    }
    Completion completion{.token = open.token,
                          .code = Code::kOk,
                          .begin_ns = std::min(open.begin_ns, now),
                          .end_ns = now};
    if (!done) {
      completion.code = failure != nullptr ? failure->code() : Code::kCancelled;
      if (failure != nullptr) completion.cause = failure->text();
    }
    completions.push_back(std::move(completion));
    if (open.receives) {
      if (const auto kept = PopKept({open.member, open.position})) wire_.Drop(kept->arrival);
    }
    --(open.receives ? receives_ : sends_);
    open.used = false;
    free_.push_back(open_[i]);
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

}  // namespace headrace::transport
