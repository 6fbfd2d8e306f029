#include "transport/exchange/exchange.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "ipc/base/check.h"
#include "transport/exchange/device_codec.h"

namespace headrace::transport {
namespace {

constexpr std::uint32_t Bit(Collective kind) { return 1U << static_cast<unsigned>(kind); }

// How often the destructor lets the wire give back memory. Closing its links has taken everything
// from a wire that keeps its promise by then.
constexpr int kLastProgressMax = 1000;

// Kept until they are drained.
constexpr std::size_t kMovesMax = 1024;

}  // namespace

Exchange::Exchange(Wire& wire, const ExchangeOptions& options,
                   std::shared_ptr<ServedResiduals> residuals)
    : wire_(wire),
      options_(options),
      capabilities_{
          .name = options_.name,
          .collectives = Bit(Collective::kAllReduce) | Bit(Collective::kReduce) |
                         Bit(Collective::kBroadcast) | Bit(Collective::kBarrier) | Bit(kSend) |
                         Bit(kReceive),
          .transfers_max = options.transfers_max,
          .piece_size = options.piece_size,
          .threads = 1,
          .measures_flow = true,
          .device_codecs = options_.device_codec == nullptr ? 0 : options_.device_codec->codecs()},
      pacer_(options.peer_bytes_max),
      residuals_(residuals ? std::move(residuals) : std::make_shared<ServedResiduals>(0)),
      server_sums_(*residuals_) {
  HR_CHECK(options.transfers_max > 0 && options.transfers_max <= UINT16_MAX, options.transfers_max);
  refused_.reserve(options.transfers_max);
  groups_.reserve(kGroupsMax);
}

// Only the wire works here: DoWork would also sum what has come, in memory that may be unmapped.
Exchange::~Exchange() {
  for (const auto& group : groups_) {
    if (group) group->Abandon("the lane ends");
  }
  if (options_.device_codec != nullptr) {
    // The second time for the mark of what the first has found started.
    for (int i = 0; i < 2; ++i) {
      options_.device_codec->Wait();
      (void)options_.device_codec->Poll();
    }
    for (const auto& group : groups_) {
      if (group) group->OnCodec();
    }
  }
  for (int i = 0; i < kLastProgressMax; ++i) {
    for (auto& group : groups_) {
      if (group && group->Release()) group.reset();
    }
    if (std::ranges::all_of(groups_, [](const auto& group) { return group == nullptr; })) return;
    wire_.Progress(*this);
  }
}

PostResult Exchange::Post(const Transfer& transfer, TimeNs now) {
  Group* const group = Find(transfer.group);
  if (group != nullptr) {
    if (!group->HasRoom(transfer)) return PostResult::kBusy;
    group->Post(transfer);
    return PostResult::kAccepted;
  }
  if (refused_.size() == options_.transfers_max) return PostResult::kBusy;
  refused_.push_back(
      {.token = transfer.token,
       .code = Code::kUnavailable,
       .cause = "group " + std::to_string(transfer.group) + " is not open on lane " + options_.name,
       .begin_ns = now,
       .end_ns = now});
  return PostResult::kAccepted;
}

void Exchange::Cancel(std::uint64_t token) {
  for (const auto& group : groups_) {
    if (group && group->HasTransfer(token)) group->Cancel(token);
  }
}

std::uint64_t Exchange::Missing(std::uint64_t token) const {
  for (const auto& group : groups_) {
    if (group && group->HasTransfer(token)) return group->Missing(token);
  }
  return 0;
}

bool Exchange::DoWork(TimeNs now, std::vector<Completion>& completions) {
  pacer_.AdvanceTo(now);
  wire_.AdvanceTo(now);
  const bool coded = PollCodec();
  bool worked = wire_.Progress(*this) || coded;
  flow_.OnWorkBegins(now, worked || has_work_);
  // What has left makes room for what waits: the wire is not idle while something is summed.
  worked = RunTurns() || worked;
  completions.insert(completions.end(), refused_.begin(), refused_.end());
  refused_.clear();
  bool summed = false;
  for (std::size_t i = 0; i < groups_.size() && !summed; ++i) {
    const std::size_t slot = (turn_ + i) % groups_.size();
    std::unique_ptr<Group>& group = groups_[slot];
    if (!group || !group->HasWork()) continue;
    // What a step gives to the wire may be done at once.
    worked = true;
    summed = group->Step(now, completions);
    if (summed) turn_ = slot + 1;
    if (group->gone()) group.reset();
  }
  while (!groups_.empty() && groups_.back() == nullptr) groups_.pop_back();
  worked = RunTurns() || worked;
  // What was started in this turn is marked at once.
  const bool codec_worked = PollCodec() || coded;
  const bool spins = codec_timer_.OnPolled(AwaitsCodec(), codec_worked, now);
  has_work_ = HasWork();
  flow_.OnWorkEnds(now, has_work_ || MovesByItself() || AwaitsCodec());
  return worked || has_work_ || spins;
}

bool Exchange::PollCodec() {
  if (options_.device_codec == nullptr || !options_.device_codec->Poll()) return false;
  for (const auto& group : groups_) {
    if (group) group->OnCodec();
  }
  return true;
}

bool Exchange::AwaitsCodec() const {
  return std::ranges::any_of(groups_,
                             [](const auto& group) { return group && group->awaits_codec(); });
}

// Gives the wire what it has room for; returns whether that was anything.
bool Exchange::RunTurns() {
  bool any = false;
  while (const auto turn = pacer_.Next()) {
    groups_[turn->group]->OnTurn(turn->item, turn->member,
                                 turn->urgency == SendPacer::Urgency::kFirst);
    any = true;
  }
  return any;
}

bool Exchange::MovesByItself() const {
  return std::ranges::any_of(
      groups_, [](const auto& group) { return group && group->messages_moving() > 0; });
}

bool Exchange::HasWork() const {
  return !refused_.empty() ||
         std::ranges::any_of(groups_, [](const auto& group) { return group && group->HasWork(); });
}

bool Exchange::PrepareToSleep() { return !HasWork() && wire_.PrepareToSleep(); }

Status Exchange::OpenGroup(const GroupOptions& options) {
  HR_CHECK(options.group != 0);
  HR_CHECK(!options.members.empty() && options.members.size() <= kNodesMax, options.members.size());
  HR_CHECK(options.self < options.members.size(), options.self);
  HR_CHECK(options.servers_count < options.members.size(), options.servers_count);
  for (const auto& group : groups_) {
    if (!group ||
        (group->options().group != options.group && group->options().key != options.key)) {
      continue;
    }
    return Error(Code::kAlreadyExists, "group " + std::to_string(group->options().group) +
                                           " with the same number or key has not ended on lane " +
                                           options_.name);
  }
  const auto free =
      std::ranges::find_if(groups_, [](const auto& group) { return group == nullptr; });
  if (free == groups_.end() && groups_.size() == kGroupsMax) {
    return Error(Code::kExhausted, "lane " + options_.name + " has " + std::to_string(kGroupsMax) +
                                       " groups, and no more than that; end a job first");
  }
  auto opened = Group::Open(wire_, pacer_, counters_, options_, options,
                            static_cast<std::uint16_t>(free - groups_.begin()), server_sums_);
  if (!opened) return opened.error();
  if (free == groups_.end()) {
    groups_.push_back(std::move(opened).value());
  } else {
    *free = std::move(opened).value();
  }
  return {};
}

void Exchange::SetCost(std::uint32_t group, const CostLine& cost) {
  if (Group* const found = Find(group)) found->SetCost(cost);
}

void Exchange::SetShare(std::uint32_t group, const Share& share) {
  if (Group* const found = Find(group)) found->SetShare(share);
}

void Exchange::CloseGroup(std::uint32_t group, const std::string& cause) {
  if (Group* const found = Find(group)) found->Close(cause);
}

void Exchange::SendNotice(std::uint32_t group, std::uint32_t member, std::vector<std::byte> bytes) {
  if (Group* const found = Find(group)) found->SendNotice(member, std::move(bytes));
}

void Exchange::DrainNotices(std::vector<Notice>& notices) {
  for (const auto& group : groups_) {
    if (group) group->DrainNotices(notices);
  }
}

void Exchange::DrainStaging(std::vector<StagingRequest>& requests) {
  for (const auto& group : groups_) {
    if (group) group->DrainStaging(requests);
  }
}

void Exchange::SetStaging(std::uint32_t group, const Result<std::byte*>& on_gpus) {
  if (Group* const found = Find(group)) found->OnStaging(on_gpus);
}

void Exchange::Announced(const MessageHeader& header, std::size_t size, ArrivalId arrival) {
  for (const auto& group : groups_) {
    if (group && group->options().key == header.key) return group->Announced(header, size, arrival);
  }
  ++counters_.messages_dropped;
  wire_.Drop(arrival);
}

void Exchange::Sent(std::uint64_t token, Code code) { Of(token).Sent(token, code); }

void Exchange::Received(std::uint64_t token, Code code) { Of(token).Received(token, code); }

void Exchange::LinkFailed(LinkId link, const std::string& cause) {
  for (const auto& group : groups_) {
    if (group && group->HasLink(link)) return group->LinkFailed(link, cause);
  }
}

NetworkCounters Exchange::counters() const {
  NetworkCounters all = counters_;
  all.messages_dropped += wire_.dropped_count();
  return all;
}

// Where nobody drains them, those that came first are as good as any.
void Exchange::LinkMoved(LinkId link, const LinkMove& move) {
  if (moves_.size() == kMovesMax) return;
  for (const auto& group : groups_) {
    const auto member = group ? group->MemberOf(link) : std::nullopt;
    if (member) moves_.push_back({group->options().group, *member, move});
  }
}

void Exchange::DrainMoves(std::vector<MovedLink>& moves) {
  std::ranges::move(moves_, std::back_inserter(moves));
  moves_.clear();
}

Group* Exchange::Find(std::uint32_t group) const {
  for (const auto& open : groups_) {
    if (open && open->options().group == group) return open.get();
  }
  return nullptr;
}

// The wire's tokens come back while their group has messages open, so it is there.
Group& Exchange::Of(std::uint64_t token) const {
  const std::size_t slot = Group::SlotOf(token);
  HR_CHECK(slot < groups_.size() && groups_[slot] != nullptr, token);
  return *groups_[slot];
}

}  // namespace headrace::transport
