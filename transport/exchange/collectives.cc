#include "transport/exchange/collectives.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::transport {
namespace {

constexpr std::uint64_t kReceiveBit = 1U << 15;
constexpr std::uint64_t kIndexMask = kReceiveBit - 1;

constexpr std::uint32_t Bit(PositionOrder order) { return 1U << static_cast<unsigned>(order); }

constexpr std::uint16_t PieceOf(std::uint64_t token) {
  return static_cast<std::uint16_t>(token >> 16);
}

}  // namespace

Collectives::Collectives(Wire& wire, SendPacer& pacer, NetworkCounters& counters,
                         GroupFailure& failure, const ExchangeOptions& exchange,
                         const GroupOptions& options, std::uint16_t slot, ServerSums& server_sums)
    : wire_(wire),
      pacer_(pacer),
      counters_(counters),
      failure_(failure),
      options_(options),
      slot_(slot),
      choice_{.data_count = DataCount(options),
              .servers_count = options.servers_count,
              .algorithm = options.algorithm},
      limits_(LimitsOf(exchange, choice_.data_count, choice_.servers_count)),
      links_(options.members.size()),
      held_(limits_.held_max),
      open_(exchange.transfers_max, limits_, SlotsMax(), !is_server()),
      memory_(options, is_server(), server_sums, exchange.device_codec),
      waits_(open_, held_, wire, options) {
  ready_.reserve(open_.pieces().size());
}

Collectives::~Collectives() {
  while (const auto message = held_.PopAny()) wire_.Drop(message->arrival);
  // Memory that the wire or GPUs may still touch is left to the wire.
  const bool idle = std::ranges::none_of(open_.pieces(), &OpenPiece::active) && staging_is_free();
  if (idle && !memory_.staging().empty()) wire_.FreeStaging(memory_.staging());
}

Status Collectives::AllocateStaging() {
  const auto slots_count = static_cast<std::uint32_t>(kBudgetsCount * SlotsMax());
  auto memory = wire_.AllocateStaging(memory_.StagingSize(limits_.message_size_max, slots_count));
  if (!memory) {
    return memory.error().Within("staging memory of group " + std::to_string(options_.group));
  }
  memory_.SetStaging(*memory, limits_.message_size_max, slots_count);
  return {};
}

void Collectives::OpenLink(std::uint32_t member, LinkId link, const std::string& address) {
  const auto open_flow = [&](SendPacer::Urgency urgency) {
    return pacer_.OpenFlow(slot_, static_cast<std::uint16_t>(member), address,
                           open_.pieces().size(), urgency);
  };
  links_[member] = {.id = link,
                    .flow = open_flow(SendPacer::Urgency::kUsual),
                    .flow_of_copies = open_flow(SendPacer::Urgency::kSoon),
                    .open = true};
}

void Collectives::Withdraw() {
  for (std::size_t member = 0; member < links_.size(); ++member) {
    Link& link = links_[member];
    if (!link.open) continue;
    for (const SendPacer::FlowId flow : {link.flow, link.flow_of_copies}) {
      while (const auto index = pacer_.Withdraw(flow)) {
        OpenPiece& piece = open_.pieces()[*index];
        piece.waits_turn &= ~MemberBit(member);
        --piece.open_count;
      }
    }
    link.open = false;
  }
}

void Collectives::Break() {
  broken_ = true;
  while (const auto message = held_.PopAny()) wire_.Drop(message->arrival);
  for (std::size_t index = 0; index < open_.pieces().size(); ++index) {
    OpenPiece& piece = open_.pieces()[index];
    if (!piece.active) continue;
    const Round& round = piece.schedule.rounds[piece.round];
    for (std::size_t i = 0; i < round.receives_count; ++i) {
      if (piece.receives[i] != ReceiveState::kExpected) continue;
      piece.receives[i] = ReceiveState::kEnded;
      --piece.open_count;
    }
    if (piece.open_count == 0) EndPiece(static_cast<std::uint16_t>(index));
  }
}

void Collectives::Post(const Transfer& transfer) {
  HR_CHECK(!is_server(), transfer.token);
  HR_CHECK(RunsBetweenNodes(transfer.kind), static_cast<int>(transfer.kind));
  HR_CHECK(transfer.members_count == choice_.data_count, transfer.members_count);
  HR_CHECK(transfer.root < transfer.members_count, transfer.root);
  HR_CHECK(transfer.position >= open_.PostedEnd(transfer.position, transfer.kind),
           transfer.position);
  HR_CHECK(!IsHalf(transfer.kind) || choice_.servers_count == 0, transfer.token);
  CollectiveSpec spec = SpecOf(transfer);
  if (choice_.data_count == 1) {  // nothing crosses
    spec.codec = Codec::kNone;
    spec.rows = 0;
  }
  if (choice_.servers_count == 0) spec.place = 0;
  HR_CHECK(spec.count <= kTransferBytesMax / SizeOf(spec.dtype), spec.count);
  HR_CHECK(!spec.encoded() || MayBeEncoded(spec), Describe(spec));
  HR_CHECK(transfer.residual == nullptr || MayHaveResidual(spec), Describe(spec));
  CheckMemory(transfer);
  HR_CHECK(transfer.residual == nullptr || choice_.servers_count == 0 || spec.factored() ||
               (spec.place > 0 && transfer.runs.size() <= kServedRunsMax),
           transfer.runs.size(), spec.place);
  // Partial sums of integers would have to be wider than the integers are.
  HR_CHECK(spec.reduction != Reduction::kAverage || IsFloating(spec.dtype), Describe(spec));
  OpenCollective& collective = Open(spec, transfer.position, RunWalk(transfer));
  collective.token = transfer.token;
  collective.memory = transfer.members[options_.self];
  collective.output = transfer.output;
  collective.residual = transfer.residual;
  collective.residual_on_gpus = transfer.residual_on_gpus;
  collective.device = memory_.has_device_codec() ? transfer.devices[options_.self] : kHost;
  collective.residual_walk = ResidualWalk(transfer);
  collective.seed = transfer.seed;
  if (spec.factored()) collective.UseFactors(transfer, memory_.device_codec());
  memory_.MakeReady(collective);
  open_.SetPosted(collective);
  if (!failure_.failed()) CheckHeld(collective);
}

std::uint64_t Collectives::Missing(std::uint64_t token) const {
  const OpenCollective* const collective = Find(token);
  if (collective == nullptr || failure_.failed()) return 0;
  std::uint64_t stuck = 0;
  for (std::size_t member = 0; member < links_.size(); ++member) {
    if (links_[member].open && pacer_.IsStuck(links_[member].flow)) stuck |= MemberBit(member);
  }
  return waits_.Missing(*collective, stuck);
}

std::uint64_t Collectives::TokenOf(std::uint16_t piece, bool receive, std::size_t index) const {
  return std::uint64_t{slot_} << 32 | std::uint64_t{piece} << 16 | (receive ? kReceiveBit : 0) |
         index;
}

void Collectives::Announced(const MessageHeader& header, std::size_t size, ArrivalId arrival) {
  const Message message{.header = header, .size = size, .arrival = arrival};
  if (size > limits_.message_size_max || !SpecOf(header, choice_.data_count))
    return Refuse(message);
  Route(message);
}

void Collectives::Route(const Message& message) {
  const MessageHeader& header = message.header;
  OpenCollective* collective = open_.FindPosition(header.position);
  if (collective == nullptr) {
    const CollectiveSpec spec = *SpecOf(header, choice_.data_count);
    if (open_.IsOver(header.position, spec.kind)) return Refuse(message);
    if (!is_server()) return Hold(message);
    if (!Reduces(spec.kind) || IsHalf(spec.kind)) return Refuse(message);
    if (!HasRoom(header.position, spec.kind)) {
      starved_ = true;
      return Hold(message);
    }
    collective = &Open(spec, header.position, {});
    CheckHeld(*collective);
  }
  if (!Agrees(message, *collective)) {
    wire_.Drop(message.arrival);
    return;
  }
  if (const auto piece = open_.FindPiece(*collective, header.piece)) {
    return RouteToPiece(message, *piece);
  }
  // The piece is done: its message came twice.
  if (header.piece < collective->next_piece) return Refuse(message);
  if (header.piece >= collective->wanted_end) {
    collective->wanted_end = header.piece + 1;
    dirty_ = true;
  }
  Hold(message);
}

// Whether the sender means the same transfer, cut alike. If not, the group fails.
bool Collectives::Agrees(const Message& message, const OpenCollective& collective) {
  const CollectiveSpec theirs = *SpecOf(message.header, choice_.data_count);
  if (theirs != collective.spec) {
    Disagree(message,
             "sends " + Describe(theirs) + ", this node posted " + Describe(collective.spec));
    return false;
  }
  const std::uint32_t piece = message.header.piece;
  if (piece >= collective.partition.pieces_count() ||
      (is_server() && collective.partition.Owner(piece) != options_.self)) {
    Disagree(message, "cuts " + Describe(theirs) + " into other pieces than this node");
    return false;
  }
  return true;
}

void Collectives::RouteToPiece(const Message& message, std::uint16_t index) {
  OpenPiece& piece = open_.pieces()[index];
  const auto spot = piece.schedule.FindReceive(message.header.round, message.header.sender);
  if (!spot || !memory_.MayReceive(open_.at(piece.collective), piece,
                                   piece.schedule.rounds[spot->round], message.size)) {
    Disagree(message, "sends pieces of " + Describe(open_.at(piece.collective).spec) +
                          " by another way than this node");
    wire_.Drop(message.arrival);
    return;
  }
  const bool is_early = spot->round > piece.round;
  if (is_early || (piece.awaits_codec && spot->round == piece.round)) return Hold(message);
  const bool due = spot->round == piece.round;
  if (!due || piece.receives[spot->receive] != ReceiveState::kExpected) return Refuse(message);
  Accept(message, index, spot->receive);
}

// Held messages were not compared with a transfer that was not posted yet.
void Collectives::CheckHeld(const OpenCollective& collective) {
  held_.ForEach([this, &collective](const Message& message) {
    if (message.header.position == collective.position) Agrees(message, collective);
  });
}

void Collectives::CheckHeld(const OpenCollective& collective, const OpenPiece& piece) {
  held_.ForEach([this, &collective, &piece](const Message& message) {
    const MessageHeader& header = message.header;
    if (header.position != collective.position || header.piece != piece.number) return;
    const auto spot = piece.schedule.FindReceive(header.round, header.sender);
    const auto& rounds = piece.schedule.rounds;
    if (spot && memory_.MayReceive(collective, piece, rounds[spot->round], message.size)) return;
    Disagree(message,
             "sends pieces of " + Describe(collective.spec) + " by another way than this node");
  });
}

void Collectives::Hold(const Message& message) {
  switch (held_.Hold(message)) {
    case HeldMessages::Outcome::kHeld:
      return;
    case HeldMessages::Outcome::kTwice:
      return Refuse(message);
    case HeldMessages::Outcome::kFull:
      wire_.Drop(message.arrival);
      failure_.Set(Code::kExhausted, "node " + options_.members[message.header.sender].name +
                                         " is further ahead than any node may be: " +
                                         std::to_string(held_.messages_max()) +
                                         " messages wait for transfers that were not posted here");
      dirty_ = true;
      return;
  }
}

void Collectives::Refuse(const Message& message) {
  ++counters_.messages_dropped;
  wire_.Drop(message.arrival);
}

void Collectives::Disagree(const Message& message, const std::string& what) {
  failure_.OnMismatch(message.header.sender, message.header.position, what);
  dirty_ = true;
}

void Collectives::Accept(const Message& message, std::uint16_t index, std::size_t receive) {
  OpenPiece& piece = open_.pieces()[index];
  const Round& round = piece.schedule.rounds[piece.round];
  piece.receives[receive] = ReceiveState::kAccepted;
  piece.received_sizes[receive] = static_cast<std::uint32_t>(message.size);
  ++messages_moving_;
  wire_.Accept(message.arrival,
               memory_.ReceivedBytes(open_.at(piece.collective), piece, round, receive),
               TokenOf(index, true, receive));
}

void Collectives::Sent(std::uint64_t token, Code code) {
  const std::size_t peer = token & kIndexMask;
  HR_CHECK((token & kReceiveBit) == 0 && peer < members_count(), token);
  const std::uint16_t index = PieceOf(token);
  HR_CHECK(index < open_.pieces().size(), token);
  OpenPiece& piece = open_.pieces()[index];
  HR_CHECK((piece.is_on_wire & MemberBit(peer)) != 0, token);
  piece.is_on_wire &= ~MemberBit(peer);
  const std::size_t size = piece.sent_size;
  if (wire_.IsEager(size)) {
    pacer_.Ended(links_[peer].flow, size);
    --messages_moving_;
  }
  if (code != Code::kOk) OnEndedEarly(piece, static_cast<std::uint32_t>(peer), "to", code);
  EndMessage(index);
}

void Collectives::Received(std::uint64_t token, Code code) {
  const std::uint16_t index = PieceOf(token);
  const std::size_t receive = token & kIndexMask;
  HR_CHECK((token & kReceiveBit) != 0 && index < open_.pieces().size(), token);
  OpenPiece& piece = open_.pieces()[index];
  const Round& round = piece.schedule.rounds[piece.round];
  HR_CHECK(receive < round.receives_count, token);
  HR_CHECK(piece.receives[receive] == ReceiveState::kAccepted, token);
  piece.receives[receive] = ReceiveState::kEnded;
  --messages_moving_;
  if (code == Code::kOk) {
    ++counters_.messages_received;
    counters_.bytes_received += piece.received_sizes[receive];
  } else {
    OnEndedEarly(piece, piece.schedule.Receives(round)[receive], "from", code);
  }
  EndMessage(index);
}

void Collectives::EndMessage(std::uint16_t index) {
  HR_CHECK(index < open_.pieces().size(), index);
  OpenPiece& piece = open_.pieces()[index];
  HR_CHECK(piece.active && piece.open_count > 0, index, piece.open_count);
  --piece.open_count;
  if (piece.open_count > 0) return;
  if (broken_) {
    EndPiece(index);
  } else if (!piece.spoiled) {
    ready_.push_back(index);
  }
}

OpenCollective& Collectives::Open(const CollectiveSpec& spec, std::uint64_t position,
                                  const RunWalk& walk) {
  OpenCollective& collective = open_.Open(position, spec);
  collective.pattern = ChoosePattern(spec, choice_);
  collective.partition = Partition(spec, collective.pattern, position, choice_.data_count,
                                   choice_.servers_count, limits_.slot_size);
  collective.walk = walk;
  if (is_server()) {
    collective.next_piece = collective.partition.NextOwned(0, options_.self);
  } else {
    collective.wanted_end = collective.partition.pieces_count();
  }
  dirty_ = true;
  return collective;
}

// A server that had no room for a transfer begins it from one of its messages; the others stay
// where they are until their piece begins.
void Collectives::BeginHeld() {
  if (!starved_) return;
  starved_ = false;
  for (auto position = held_.LowestPosition(0); position;) {
    // Servers begin sums only.
    if (open_.FindPosition(*position) == nullptr && HasRoom(*position, Collective::kAllReduce)) {
      std::optional<Message> first;
      held_.ForEach([&first, &position](const Message& message) {
        if (message.header.position == *position) first = message;
      });
      held_.Pop(NameOf(first->header));
      Route(*first);
    } else if (open_.FindPosition(*position) == nullptr) {
      starved_ = true;
    }
    if (*position == UINT64_MAX) return;
    position = held_.LowestPosition(*position + 1);
  }
}

void Collectives::Begin(TimeNs now) {
  BeginHeld();
  constexpr std::uint32_t kCopies = Bit(PositionOrder::kCopies);
  constexpr std::uint32_t kSums = Bit(PositionOrder::kSums);
  if (by_urgency_) {
    BeginOf(kCopies, now);
    BeginOf(kSums, now);
  } else {
    BeginOf(kCopies | kSums, now);
  }
  BeginOf(Bit(PositionOrder::kPlanned), now);
}

// In the order of positions and pieces: see GroupLimits::window. Orders that take turns take them
// by their positions, too. They cannot hold each other up for good, since whatever has the lowest
// position of all that some node has not ended goes on everywhere.
void Collectives::BeginOf(std::uint32_t orders, TimeNs now) {
  for (std::size_t i = 0; i < open_.open_count(); ++i) {
    const std::uint16_t index = open_.OpenAt(i);
    OpenCollective& collective = open_.at(index);
    if ((orders & Bit(OrderOf(collective))) == 0) continue;
    while (collective.next_piece < collective.wanted_end) {
      if (failure_.failed()) return;
      // Nothing may begin before the pieces that it waits for.
      if (collective.lacks_factor()) return StepFactors(collective, now);
      if (!BeginPiece(index, now)) return;
      if (!collective.spec.encoded()) continue;
      // What was encoded can leave while the next is encoded.
      dirty_ = true;
      return;
    }
    if (collective.has_factors_left() && !collective.is_at_work()) {
      return StepFactors(collective, now);
    }
  }
}

// One part of the work, where no piece is under way: others have their turn before the next.
void Collectives::StepFactors(OpenCollective& collective, TimeNs now) {
  if (collective.is_at_work() || failure_.failed() || !collective.factors.HasRoom()) return;
  if (collective.begin_ns == kNever) collective.begin_ns = now;
  collective.factors.Step(collective.codec);
  if (collective.factors.awaits_gpu()) ++awaiting_count_;
  dirty_ = true;
}

// False when the order's window is full, or its staging.
bool Collectives::BeginPiece(std::uint16_t collective_index, TimeNs now) {
  OpenCollective& collective = open_.at(collective_index);
  if (!open_.HasWindow(collective)) return false;
  const std::uint32_t number = collective.next_piece;
  const CollectiveSchedule schedule =
      MakeSchedule(PieceSpecOf(collective, number, choice_.data_count, options_.self));
  const Partition::Range range = collective.partition.PieceRange(number);
  RunWalk& walk = collective.walk;
  walk.Seek(range.begin);
  const bool encoded = collective.spec.encoded() && !collective.spec.factored();
  const bool in_runs = !walk.over() && walk.stretch().end < range.begin + range.count;
  // What goes to a server with a tail is one message with it.
  const bool gathered = !encoded && (in_runs || (!is_server() && collective.sends_tails()));
  const bool has_own_slot = gathered || (encoded && !is_server());
  const std::size_t slots_count = schedule.staged_max + std::size_t{has_own_slot};
  if (!open_.HasSlots(collective, slots_count) || !memory_.HasRoom(collective)) return false;
  const std::uint16_t index = open_.OpenPieceOf(collective_index, slots_count);
  OpenPiece& piece = open_.pieces()[index];
  piece.number = number;
  piece.range = range;
  piece.walk = walk;
  piece.gathered = gathered;
  piece.encoded = encoded;
  piece.has_own_slot = has_own_slot;
  piece.schedule = schedule;
  memory_.Begin(collective, piece);
  collective.next_piece =
      is_server() ? collective.partition.NextOwned(number + 1, options_.self) : number + 1;
  if (collective.begin_ns == kNever) collective.begin_ns = now;
  CheckHeld(collective, piece);
  piece.spoiled = failure_.failed();
  if (!piece.spoiled || piece.awaits_codec) BeginRound(index);
  return true;
}

// Goes on with pieces that a GPU has coded; others that have not begun may have room again.
void Collectives::OnCodec() {
  for (std::uint16_t index = 0; index < open_.pieces().size(); ++index) {
    OpenPiece& piece = open_.pieces()[index];
    std::optional<PieceFault> fault;
    if (!piece.active || !piece.awaits_codec) continue;
    const OpenCollective& collective = open_.at(piece.collective);
    if (!memory_.EndCodec(open_.at(piece.collective), piece, fault)) continue;
    --awaiting_count_;
    --piece.open_count;
    if (fault) failure_.OnFault(*fault, {}, collective.position, Describe(collective.spec));
    if (broken_) EndPiece(index);
    if (!broken_ && !fault && !piece.spoiled) BeginRound(index);
  }
  for (std::size_t i = 0; i < open_.open_count(); ++i) {
    OpenCollective& collective = open_.at(open_.OpenAt(i));
    std::optional<PieceFault> fault;
    if (!collective.factors.EndGpuWork(memory_.gpu_times(), collective.codec, fault)) continue;
    --awaiting_count_;
    if (fault) failure_.OnFault(*fault, {}, collective.position, Describe(collective.spec));
  }
  dirty_ = true;
}

void Collectives::BeginRound(std::uint16_t index) {
  OpenPiece& piece = open_.pieces()[index];
  OpenCollective& collective = open_.at(piece.collective);
  memory_.PrepareRound(collective, piece);
  if (piece.awaits_codec) {
    ++piece.open_count;
    ++awaiting_count_;
    return;
  }
  if (piece.round == piece.schedule.rounds_count) {
    memory_.PutResult(collective, piece);
    return EndPiece(index);
  }
  const Round& round = piece.schedule.rounds[piece.round];
  piece.open_count = std::uint32_t{round.sends_count} + round.receives_count;
  if (piece.open_count == 0) ready_.push_back(index);
  memory_.BeginRound(collective, piece, round);
  const std::size_t size = piece.sent_size;
  for (const std::uint8_t peer : piece.schedule.Sends(round)) {
    if (wire_.IsEager(size)) {
      piece.waits_turn |= MemberBit(peer);
      pacer_.Push(FlowTo(peer, collective), index, size);
      continue;
    }
    // It costs the wire nothing until its receiver takes it, and that may be late: others must not
    // wait for that.
    pacer_.Charge(slot_, size);
    Send(index, peer);
  }
  const auto senders = piece.schedule.Receives(round);
  std::fill_n(piece.receives.begin(), senders.size(), ReceiveState::kExpected);
  for (std::size_t i = 0; i < senders.size(); ++i) {
    const auto message = held_.Pop({collective.position, piece.number, round.number, senders[i]});
    if (message) Accept(*message, index, i);
  }
}

void Collectives::OnTurn(std::uint16_t index, std::uint16_t member) {
  OpenPiece& piece = open_.pieces()[index];
  HR_CHECK((piece.waits_turn & MemberBit(member)) != 0, index, member);
  piece.waits_turn &= ~MemberBit(member);
  Send(index, member);
}

void Collectives::Send(std::uint16_t index, std::uint16_t member) {
  OpenPiece& piece = open_.pieces()[index];
  const OpenCollective& collective = open_.at(piece.collective);
  const MessageHeader header = HeaderOf(options_, collective, piece);
  const std::size_t size = piece.sent_size;
  ++counters_.messages_sent;
  counters_.bytes_sent += size;
  piece.is_on_wire |= MemberBit(member);
  if (wire_.IsEager(size)) ++messages_moving_;
  wire_.Send(links_[member].id, header, memory_.SentBytes(collective, piece), size,
             TokenOf(index, false, member));
}

bool Collectives::Advance() {
  dirty_ = false;
  bool summed = false;
  for (std::size_t left = ready_.size(); left > 0 && !summed; --left) {
    const std::uint16_t index = ready_.front();
    ready_.erase(ready_.begin());
    summed = AdvancePiece(index);
  }
  return summed;
}

// After a round has ended; returns whether that took a sum.
bool Collectives::AdvancePiece(std::uint16_t index) {
  OpenPiece& piece = open_.pieces()[index];
  OpenCollective& collective = open_.at(piece.collective);
  const Round& round = piece.schedule.rounds[piece.round];
  if (const auto fault = memory_.EndRound(collective, piece, round)) {
    failure_.OnFault(*fault, piece.schedule.Receives(round), collective.position,
                     Describe(collective.spec));
    dirty_ = true;
    return true;  // it waits for the group's end
  }
  ++piece.round;
  BeginRound(index);
  return round.staged;
}

void Collectives::EndPiece(std::uint16_t index) {
  const OpenPiece& piece = open_.pieces()[index];
  HR_CHECK(piece.active && piece.open_count == 0, index, piece.open_count);
  memory_.Release(piece);
  open_.ClosePiece(index);
  dirty_ = true;
}

void Collectives::End(TimeNs now, std::vector<Completion>& completions) {
  for (std::size_t i = 0; i < open_.open_count();) {
    const OpenCollective& collective = open_.at(open_.OpenAt(i));
    const bool is_whole = collective.all_begun() && !collective.has_factors_left();
    if (collective.is_at_work() || (!broken_ && !is_whole)) {
      ++i;
      continue;
    }
    if (is_server()) {
      open_.SetOver(collective);
      dirty_ = dirty_ || starved_;
    } else {
      const bool succeeded = is_whole && !broken_;
      completions.push_back({.token = collective.token,
                             .code = succeeded ? Code::kOk : failure_.error()->code(),
                             .cause = succeeded ? std::string() : failure_.error()->text(),
                             .begin_ns = std::min(collective.begin_ns, now),
                             .end_ns = now,
                             .codec = collective.codec});
    }
    open_.CloseAt(i);
  }
}

}  // namespace headrace::transport
