#include "service/lane/groups.h"

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"
#include "service/lane/lane_probe.h"

namespace headrace::service {
namespace {

// Blocks' positions begin with an operation's number, which is at least 1.
constexpr std::uint64_t kProbePosition = 0;
constexpr TimeNs kFactsInterval = 200 * kMillisecond;

}  // namespace

void Groups::Handle(const LaneMessage& message) {
  if (const auto* open = std::get_if<OpenGroup>(&message)) {
    Open(open->options);
  } else if (const auto* measure = std::get_if<MeasureGroup>(&message)) {
    Measure(measure->group);
  } else if (const auto* set = std::get_if<SetCost>(&message)) {
    if (groups_.contains(set->group)) transport_.SetCost(set->group, set->cost);
  } else if (const auto* share = std::get_if<SetShare>(&message)) {
    if (groups_.contains(share->group)) transport_.SetShare(share->group, share->share);
  } else if (const auto* pinned = std::get_if<StagingPinned>(&message)) {
    transport_.SetStaging(pinned->group, pinned->on_gpus);
  } else if (const auto* close = std::get_if<CloseGroup>(&message)) {
    Close(*close);
  } else if (const auto* notices = std::get_if<SendNotices>(&message)) {
    Send(*notices);
  } else {
    HR_CHECK(false, message.index());
  }
}

void Groups::Open(const transport::GroupOptions& options) {
  // Numbers of groups are never used again, also while a closed one is still being measured.
  HR_CHECK(!groups_.contains(options.group), options.group);
  Status status = transport_.OpenGroup(options);
  if (status) {
    const auto members = static_cast<std::uint32_t>(options.members.size());
    groups_[options.group].facts = {.group = options.group,
                                    .members_count = members - options.servers_count,
                                    .servers_count = options.servers_count,
                                    .self = options.self,
                                    .position_first = kProbePosition,
                                    .token = kOwnToken | options.group};
  }
  wires_changed_ = true;
  Answer(GroupOpened{lane_, options.group, std::move(status)});
}

void Groups::Measure(std::uint32_t number) {
  const auto found = groups_.find(number);
  if (found == groups_.end()) {
    return Answer(GroupMeasured{
        lane_, number,
        Error(Code::kUnavailable, "the links were closed before they were measured")});
  }
  HR_CHECK(!found->second.probe, number);
  // A server posts nothing, so it measures nothing: whose line is slowest counts.
  if (found->second.facts.self >= found->second.facts.members_count) {
    return Answer(
        GroupMeasured{lane_, number, transport::CostLine{0, transport::kSecondsPerByteMin}});
  }
  found->second.probe.emplace(found->second.facts);
}

void Groups::Send(const SendNotices& message) {
  if (!groups_.contains(message.job.value)) return;
  std::vector<std::byte> bytes;
  for (const SendNotice& notice : message.notices) {
    const std::size_t size = EncodedSize(notice);
    HR_CHECK(size <= transport::kNoticeBytesMax, notice.send, size);
    if (bytes.size() + size > transport::kNoticeBytesMax) {
      transport_.SendNotice(message.job.value, message.node, std::exchange(bytes, {}));
    }
    bytes.reserve(bytes.size() + size);
    Encode(notice, bytes);
  }
  if (!bytes.empty()) transport_.SendNotice(message.job.value, message.node, std::move(bytes));
}

// What dispatch has no room for stays with the transport, and holds up who sends it.
bool Groups::PassNotices(Outgoing<DispatchMessage>& dispatch) {
  if (dispatch.waiting() > 0) return false;
  notices_.clear();
  transport_.DrainNotices(notices_);
  for (transport::Notice& notice : notices_) {
    if (notice.failure) ReportIfServed(notice.group, *notice.failure);
    SendNotices message{.job = JobId{notice.group},
                        .node = notice.member,
                        .notices = {},
                        .failure = std::move(notice.failure)};
    if (!message.failure) {
      auto decoded = DecodeNotices(notice.bytes);
      if (decoded) {
        message.notices = std::move(decoded).value();
      } else {
        message.failure = decoded.error();
      }
    }
    dispatch.Send(std::move(message));
  }
  return !notices_.empty();
}

// One at a time a group.
bool Groups::PassStaging(Outgoing<DispatchMessage>& dispatch) {
  staging_.clear();
  transport_.DrainStaging(staging_);
  for (const transport::StagingRequest& request : staging_) {
    dispatch.Send(StagingWanted{
        .lane = lane_, .job = JobId{request.group}, .memory = request.memory, .pin = request.pin});
  }
  return !staging_.empty();
}

// What nodes with data see of it is that their links to this one are gone.
void Groups::ReportIfServed(std::uint32_t group, const Error& failure) {
  const auto found = groups_.find(group);
  if (found == groups_.end() || failure.code() == Code::kPeerLost) return;
  if (found->second.facts.self < found->second.facts.members_count) return;
  Answer(GroupFailed{.group = group, .code = failure.code(), .cause = failure.text()});
}

// A transfer of a measurement may still be under way: the probe, and the memory it sends, stay
// until its end has come.
void Groups::Close(const CloseGroup& message) {
  const auto found = groups_.find(message.group);
  if (found == groups_.end()) return;
  transport_.CloseGroup(message.group, message.cause);
  if (found->second.probe) {
    HR_CHECK(std::ranges::find(closed_, message.group) == closed_.end(), message.group);
    closed_.push_back(message.group);
  } else {
    groups_.erase(found);
  }
}

bool Groups::Work(std::vector<transport::Completion>& completions, TimeNs now) {
  bool worked = peers_.Flush(now);
  std::erase_if(completions, [this](const transport::Completion& completion) {
    if ((completion.token & kOwnToken) == 0) return false;
    const auto found = groups_.find(static_cast<std::uint32_t>(completion.token & ~kOwnToken));
    HR_CHECK(found != groups_.end() && found->second.probe, completion.token);
    return found->second.probe->OnCompletion(completion);
  });
  for (auto each = groups_.begin(); each != groups_.end();) {
    Group& group = each->second;
    bool gone = false;
    if (group.probe) {
      worked |= group.probe->Step(transport_, now);
      if (group.probe->result()) {
        worked = true;
        gone = Finish(each->first, group);
      }
    }
    each = gone ? groups_.erase(each) : std::next(each);
  }
  worked |= SendMoves();
  SendFacts(now);
  return worked;
}

// A dispatch that is too far behind does without them: they are for people, and the lane's costs
// are learned anew without them, only later.
bool Groups::SendMoves() {
  moves_.clear();
  transport_.DrainMoves(moves_);
  for (transport::MovedLink& moved : moves_) {
    wires_changed_ = true;
    static_cast<void>(dispatch_.Send(LaneMoved{.lane = lane_,
                                               .job = JobId{moved.group},
                                               .node = moved.member,
                                               .move = std::move(moved.move)}));
  }
  return !moves_.empty();
}

bool Groups::HasFacts() const {
  return wires_changed_ || transport_.counters().messages_dropped != dropped_sent_;
}

TimeNs Groups::FactsDue() const { return HasFacts() ? facts_sent_ns_ + kFactsInterval : kNever; }

TimeNs Groups::NextDeadline() const { return std::min(FactsDue(), peers_.NextDeadline()); }

void Groups::SendFacts(TimeNs now) {
  // Strangers may make us drop as many messages as they like.
  if (now < FactsDue()) return;
  const std::uint64_t dropped = transport_.counters().messages_dropped;
  if (!dispatch_.Send(LaneFacts{lane_, transport_.WireNames(), dropped})) return;
  facts_sent_ns_ = now;
  dropped_sent_ = dropped;
  wires_changed_ = false;
}

// Returns whether the group was closed meanwhile.
bool Groups::Finish(std::uint32_t number, Group& group) {
  Answer(GroupMeasured{lane_, number, *group.probe->result()});
  group.probe.reset();
  return std::erase(closed_, number) != 0;
}

void Groups::Answer(PeersMessage message) {
  // One answer a question, of which each job has one open at a time, and one failure a group.
  peers_.Send(std::move(message));
}

}  // namespace headrace::service
