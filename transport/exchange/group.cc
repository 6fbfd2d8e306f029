#include "transport/exchange/group.h"

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::transport {

Group::Group(Wire& wire, SendPacer& pacer, NetworkCounters& counters,
             const ExchangeOptions& exchange, const GroupOptions& options, std::uint16_t slot)
    : wire_(wire),
      pacer_(pacer),
      counters_(counters),
      lane_(exchange.name),
      options_(options),
      slot_(slot),
      choice_{.data_count = members_count() - options.servers_count,
              .servers_count = options.servers_count,
              .algorithm = options.algorithm},
      limits_(LimitsOf(exchange, choice_.data_count, choice_.servers_count)),
      // Where servers sum, the others need room for no more than their own pieces.
      slots_max_(is_server() || options.servers_count == 0 ? limits_.slots_count : limits_.window),
      transfers_max_(exchange.transfers_max),
      links_(options.members.size()),
      held_(limits_.held_max),
      point_to_point_(wire, pacer, counters, options_, slot, limits_.slot_size),
      notices_(wire, pacer, counters, options_, slot),
      moves_(kOrdersCount * exchange.transfers_max),
      pieces_(kOrdersCount * limits_.window) {
  open_.reserve(moves_.size());
  ready_.reserve(pieces_.size());
  for (Order& order : orders_) order.over.reserve(2 * limits_.window + exchange.transfers_max);
  for (std::size_t i = moves_.size(); i > 0; --i) {
    free_moves_.push_back(static_cast<std::uint16_t>(i - 1));
  }
  for (std::size_t i = pieces_.size(); i > 0; --i) {
    free_pieces_.push_back(static_cast<std::uint16_t>(i - 1));
  }
}

Result<std::unique_ptr<Group>> Group::Open(Wire& wire, SendPacer& pacer, NetworkCounters& counters,
                                           const ExchangeOptions& exchange,
                                           const GroupOptions& options, std::uint16_t slot) {
  std::unique_ptr<Group> group(new Group(wire, pacer, counters, exchange, options, slot));
  const GroupLimits& limits = group->limits_;
  const auto slots_count = static_cast<std::uint32_t>(kOrdersCount * group->slots_max_);
  auto memory = wire.AllocateStaging(limits.slot_size * slots_count);
  if (!memory) {
    return memory.error().Within("staging memory of group " + std::to_string(options.group));
  }
  group->staging_ = Staging(*memory, limits.slot_size, slots_count);
  if (const Status connected = group->Connect(); !connected) return connected.error();
  return group;
}

// Servers have nothing to say to each other, and where there are servers only they sum.
Status Group::Connect() {
  for (std::uint32_t member = 0; member < members_count(); ++member) {
    if (member == options_.self || (is_server() && member >= choice_.data_count)) continue;
    const Result<LinkId> link = wire_.Connect(options_.members[member].address, options_.key);
    if (!link) return link.error().Within("connect to node " + options_.members[member].name);
    const SendPacer::FlowId flow =
        pacer_.OpenFlow(slot_, static_cast<std::uint16_t>(member), options_.members[member].address,
                        pieces_.size());
    links_[member] = {.id = *link, .flow = flow, .open = true};
    point_to_point_.OpenLink(member, *link, options_.members[member].address);
    notices_.OpenLink(member, *link);
  }
  return {};
}

Group::~Group() {
  CloseLinks();
  pacer_.CloseFlows(slot_);
  while (const auto message = held_.PopAny()) wire_.Drop(message->arrival);
  // Memory that the wire may still touch is left to it.
  const bool idle = std::ranges::none_of(pieces_, &Piece::active);
  if (idle && !staging_.memory().empty()) wire_.FreeStaging(staging_.memory());
}

// What waits at the pacer is as if it had never been.
void Group::CloseLinks() {
  point_to_point_.Break();
  notices_.Break();
  for (std::size_t member = 0; member < links_.size(); ++member) {
    Link& link = links_[member];
    if (!link.open) continue;
    while (const auto index = pacer_.Withdraw(link.flow)) {
      Piece& piece = pieces_[*index];
      piece.waits_turn &= ~MemberBit(member);
      --piece.open_count;
    }
    wire_.Close(link.id);
    link.open = false;
  }
}

void Group::Post(const Transfer& transfer) {
  HR_CHECK(!is_server(), transfer.token);
  if (IsSendOrReceive(transfer.kind)) {
    HR_CHECK(transfer.members_count == choice_.data_count, transfer.members_count);
    point_to_point_.Post(transfer);
    dirty_ = true;
    return;
  }
  HR_CHECK(RunsBetweenNodes(transfer.kind), static_cast<int>(transfer.kind));
  HR_CHECK(transfer.members_count == choice_.data_count, transfer.members_count);
  HR_CHECK(transfer.root < transfer.members_count, transfer.root);
  Order& order = orders_[OrderOf(transfer.position)];
  HR_CHECK(transfer.position >= order.positions_end, transfer.position, order.positions_end);
  HR_CHECK(!IsHalf(transfer.kind) || choice_.servers_count == 0, transfer.token);
  CollectiveSpec spec = SpecOf(transfer);
  // Alone nothing crosses. Servers sum what they get as it is.
  if (choice_.data_count == 1 || choice_.servers_count > 0) spec.codec = Codec::kNone;
  HR_CHECK(spec.count <= kTransferBytesMax / SizeOf(spec.dtype), spec.count);
  HR_CHECK(!spec.encoded() || MayBeEncoded(spec), Describe(spec));
  CheckRuns(transfer);
  // Partial sums of integers would have to be wider than the integers are.
  HR_CHECK(spec.reduction != Reduction::kAverage || IsFloating(spec.dtype), Describe(spec));
  Move& move = Begin(spec, transfer.position, RunWalk(transfer));
  move.token = transfer.token;
  move.memory = transfer.members[options_.self];
  move.output = transfer.output;
  move.residual = transfer.residual;
  order.positions_end = transfer.position + 1;
  if (!failure_) CheckHeld(move);
}

bool Group::HasTransfer(std::uint64_t token) const {
  if (point_to_point_.Has(token)) return true;
  return !is_server() && std::ranges::any_of(open_, [this, token](std::uint16_t index) {
    return moves_[index].token == token;
  });
}

void Group::Cancel(std::uint64_t token) {
  if (point_to_point_.Has(token)) {
    point_to_point_.Cancel(token);
    dirty_ = true;
    return;
  }
  for (const std::uint16_t index : open_) {
    if (is_server() || moves_[index].token != token) continue;
    Fail(Code::kCancelled, "this node cancelled " + Describe(moves_[index].spec) + " at position " +
                               std::to_string(moves_[index].position));
  }
}

void Group::SendNotice(std::uint32_t member, std::vector<std::byte> bytes) {
  if (failure_) return;
  notices_.Send(member, std::move(bytes));
  dirty_ = true;
}

void Group::TakeNotices(std::vector<Notice>& notices) {
  const std::size_t before = notices.size();
  notices_.Pop(notices);
  // Room for more: Push says so to who waits for it.
  dirty_ = dirty_ || notices.size() != before;
  if (!broken_ || closed_ || failure_taken_) return;
  failure_taken_ = true;
  notices.push_back({.group = options_.group, .failure = failure_});
}

void Group::Close(const std::string& cause) {
  Fail(Code::kCancelled, cause);
  closed_ = true;
}

void Group::Abandon(const std::string& cause) {
  Close(cause);
  // Their round has ended, so the wire has nothing of them; Break ends them like all that wait.
  ready_.clear();
  if (!broken_) Break();
}

bool Group::Release() {
  std::vector<Completion> completions;
  EndMoves(0, completions);
  return gone();
}

bool Group::HasLink(LinkId link) const {
  return std::ranges::any_of(links_,
                             [link](const Link& ours) { return ours.open && ours.id == link; });
}

void Group::LinkFailed(LinkId link, const std::string& cause) {
  for (std::size_t member = 0; member < links_.size(); ++member) {
    if (!links_[member].open || links_[member].id != link) continue;
    Fail(Code::kPeerLost,
         "node " + options_.members[member].name + ": link over " + lane_ + " failed: " + cause);
  }
}

bool Group::Step(TimeNs now, std::vector<Completion>& completions) {
  dirty_ = false;
  bool summed = false;
  for (std::size_t left = ready_.size(); left > 0 && !summed; --left) {
    const std::uint16_t index = ready_.front();
    ready_.erase(ready_.begin());
    summed = Advance(index);
  }
  if (!failure_) {
    point_to_point_.Push(now);
    notices_.Push();
    BeginHeld();
    BeginPieces(now);
  }
  EndMoves(now, completions);
  // Not before what has come is done with: a node that has finished may close its links, and its
  // last messages are as good as any.
  if (failure_ && !broken_ && ready_.empty()) {
    Break();
    EndMoves(now, completions);
  }
  return summed;
}

void Group::Fail(Code code, std::string cause, bool guess) {
  if (broken_ || (failure_ && (!failure_is_guess_ || guess))) {
    dirty_ = true;
    return;
  }
  failure_ = Error(code, std::move(cause));
  failure_is_guess_ = guess;
  dirty_ = true;
}

// What the wire still has of ours ends by itself once the links are closed; what was waiting for
// its turn is taken back, and what was only expected will not come.
void Group::Break() {
  broken_ = true;
  CloseLinks();
  while (const auto message = held_.PopAny()) wire_.Drop(message->arrival);
  for (std::size_t index = 0; index < pieces_.size(); ++index) {
    Piece& piece = pieces_[index];
    if (!piece.active) continue;
    const Round& round = piece.schedule.rounds[piece.round];
    for (std::size_t i = 0; i < round.receives_count; ++i) {
      if (piece.receives[i] != Receive::kExpected) continue;
      piece.receives[i] = Receive::kEnded;
      --piece.open_count;
    }
    if (piece.open_count == 0) EndPiece(static_cast<std::uint16_t>(index));
  }
}

}  // namespace headrace::transport
