#include "transport/exchange/group.h"

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::transport {

Group::Group(Wire& wire, SendPacer& pacer, NetworkCounters& counters,
             const ExchangeOptions& exchange, const GroupOptions& options, std::uint16_t slot,
             ServerSums& server_sums)
    : wire_(wire),
      pacer_(pacer),
      counters_(counters),
      options_(options),
      slot_(slot),
      links_(options.members.size()),
      failure_(options_, exchange.name),
      collectives_(wire, pacer, counters, failure_, exchange, options_, slot, server_sums),
      point_to_point_(wire, pacer, counters, options_, slot, collectives_.piece_size_max()),
      notices_(wire, pacer, counters, options_, slot) {}

Result<std::unique_ptr<Group>> Group::Open(Wire& wire, SendPacer& pacer, NetworkCounters& counters,
                                           const ExchangeOptions& exchange,
                                           const GroupOptions& options, std::uint16_t slot,
                                           ServerSums& server_sums) {
  std::unique_ptr<Group> group(
      new Group(wire, pacer, counters, exchange, options, slot, server_sums));
  if (Status status = group->collectives_.AllocateStaging(); !status) return status.error();
  if (Status status = group->Connect(); !status) return status.error();
  return group;
}

// Servers have nothing to say to each other, and where there are servers only they sum.
Status Group::Connect() {
  const std::uint32_t data_count = DataCount(options_);
  for (std::uint32_t member = 0; member < links_.size(); ++member) {
    const bool servers = options_.self >= data_count && member >= data_count;
    if (member == options_.self || servers) continue;
    const std::string& address = options_.members[member].address;
    const Result<LinkId> link =
        wire_.Connect(address, options_.key, static_cast<std::uint16_t>(member));
    if (!link) return link.error().Within("connect to node " + options_.members[member].name);
    links_[member] = {.id = *link, .open = true};
    collectives_.OpenLink(member, *link, address);
    point_to_point_.OpenLink(member, *link, address);
    notices_.OpenLink(member, *link);
  }
  return {};
}

Group::~Group() {
  CloseLinks();
  pacer_.CloseFlows(slot_);
}

// What waits at the pacer is as if it had never been.
void Group::CloseLinks() {
  point_to_point_.Break();
  notices_.Break();
  collectives_.Withdraw();
  for (Link& link : links_) {
    if (!link.open) continue;
    wire_.Close(link.id);
    link.open = false;
  }
}

void Group::Post(const Transfer& transfer) {
  if (!IsSendOrReceive(transfer.kind)) return collectives_.Post(transfer);
  HR_CHECK(options_.self < DataCount(options_), transfer.token);
  HR_CHECK(transfer.members_count == DataCount(options_), transfer.members_count);
  point_to_point_.Post(transfer);
  dirty_ = true;
}

void Group::Cancel(std::uint64_t token) {
  if (point_to_point_.Has(token)) {
    point_to_point_.Cancel(token);
    dirty_ = true;
    return;
  }
  const OpenCollective* const collective = collectives_.Find(token);
  if (collective == nullptr) return;
  Fail(Code::kCancelled, "this node cancelled " + Describe(collective->spec) + " at position " +
                             std::to_string(collective->position));
}

std::uint64_t Group::Missing(std::uint64_t token) const {
  if (!point_to_point_.Has(token)) return collectives_.Missing(token);
  return failure_.failed() ? 0 : point_to_point_.Missing(token);
}

void Group::SendNotice(std::uint32_t member, std::vector<std::byte> bytes) {
  if (failure_.failed()) return;
  notices_.Send(member, std::move(bytes));
  dirty_ = true;
}

void Group::DrainNotices(std::vector<Notice>& notices) {
  const std::size_t before = notices.size();
  notices_.Pop(notices);
  // Room for more: Push says so to who waits for it.
  dirty_ = dirty_ || notices.size() != before;
  if (!failure_.carried_out() || closed_ || failure_drained_) return;
  failure_drained_ = true;
  notices.push_back({.group = options_.group, .failure = failure_.error()});
}

void Group::Close(const std::string& cause) {
  Fail(Code::kCancelled, cause);
  closed_ = true;
}

void Group::Abandon(const std::string& cause) {
  Close(cause);
  // Their round has ended, so the wire has nothing of them; Break ends them like all that wait.
  collectives_.ForgetReady();
  if (!failure_.carried_out()) Break();
}

bool Group::Release() {
  std::vector<Completion> completions;
  End(0, completions);
  return released();
}

std::optional<std::uint32_t> Group::MemberOf(LinkId link) const {
  const auto found = std::ranges::find_if(
      links_, [link](const Link& ours) { return ours.open && ours.id == link; });
  if (found == links_.end()) return std::nullopt;
  return static_cast<std::uint32_t>(found - links_.begin());
}

void Group::LinkFailed(LinkId link, const std::string& cause) {
  for (std::uint32_t member = 0; member < links_.size(); ++member) {
    if (!links_[member].open || links_[member].id != link) continue;
    failure_.OnLinkFailed(member, cause);
    dirty_ = true;
  }
}

void Group::Announced(const MessageHeader& header, std::size_t size, ArrivalId arrival) {
  if (failure_.failed()) {
    wire_.Drop(arrival);
    return;
  }
  const bool ours = header.epoch == options_.epoch &&
                    header.plan_version == options_.plan_version && header.sender < links_.size() &&
                    header.sender != options_.self;
  if (!ours) {
    ++counters_.messages_dropped;
    wire_.Drop(arrival);
    return;
  }
  const bool is_notice = NoticeLinks::IsOurs(header);
  if (!is_notice && !PointToPoint::IsOurs(header)) {
    return collectives_.Announced(header, size, arrival);
  }
  const auto wrong = is_notice ? notices_.Announced(header, size, arrival)
                               : point_to_point_.Announced(header, size, arrival);
  if (wrong) failure_.OnMismatch(header.sender, header.position, *wrong);
  dirty_ = true;
}

void Group::Sent(std::uint64_t token, Code code) {
  if (PointToPoint::IsOurs(token)) {
    OnMessageEnded(point_to_point_.Sent(token, code), "to", code);
  } else if (NoticeLinks::IsOurs(token)) {
    OnMessageEnded(notices_.Sent(token), "to", code);
  } else {
    collectives_.Sent(token, code);
  }
}

void Group::Received(std::uint64_t token, Code code) {
  if (PointToPoint::IsOurs(token)) {
    OnMessageEnded(point_to_point_.Received(token, code), "from", code);
  } else if (NoticeLinks::IsOurs(token)) {
    OnMessageEnded(notices_.Received(token, code), "from", code);
  } else {
    collectives_.Received(token, code);
  }
}

void Group::OnTurn(std::uint16_t index, std::uint16_t member, bool first) {
  if (!first) return collectives_.OnTurn(index, member);
  point_to_point_.OnTurn(index);
  dirty_ = true;
}

bool Group::Step(TimeNs now, std::vector<Completion>& completions) {
  dirty_ = false;
  const bool summed = collectives_.Advance();
  if (!failure_.failed()) {
    if (const auto wrong = point_to_point_.Push(now)) {
      failure_.OnMismatch(wrong->member, wrong->position, wrong->text);
    }
    notices_.Push();
    collectives_.Begin(now);
  }
  End(now, completions);
  // Not before what has come is done with: a node that has finished may close its links, and its
  // last messages are as good as any.
  if (failure_.failed() && !failure_.carried_out() && !collectives_.has_ready()) {
    Break();
    End(now, completions);
  }
  if (released()) collectives_.staging_pin().End();
  return summed;
}

void Group::DrainStaging(std::vector<StagingRequest>& requests) {
  const std::optional<bool> pin = collectives_.staging_pin().PopRequest();
  if (!pin) return;
  requests.push_back({.group = options_.group, .memory = collectives_.staging(), .pin = *pin});
}

void Group::End(TimeNs now, std::vector<Completion>& completions) {
  point_to_point_.End(now, failure_.failed() ? &*failure_.error() : nullptr, completions);
  collectives_.End(now, completions);
}

void Group::Fail(Code code, std::string cause) {
  failure_.Set(code, std::move(cause));
  dirty_ = true;
}

// A send, receive or notice ended with that code; its message was for the member, or from it.
void Group::OnMessageEnded(std::uint32_t member, const char* direction, Code code) {
  if (code != Code::kOk) failure_.OnMessageEndedEarly(member, direction, code);
  dirty_ = true;
}

// What the wire still has of ours ends by itself once the links are closed; what was waiting for
// its turn is taken back, and what was only expected will not come.
void Group::Break() {
  failure_.SetCarriedOut();
  CloseLinks();
  collectives_.Break();
}

}  // namespace headrace::transport
