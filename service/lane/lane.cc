#include "service/lane/lane.h"

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::service {
namespace {

constexpr std::size_t kHeldStart = 64;  // grows when credits allow more small stages in flight

}  // namespace

Lane::Lane(std::uint8_t index, std::string name, transport::Transport& transport, LaneWaker& waker,
           Wakeable& thread, InboxWriter<DispatchMessage>& dispatch)
    : Lane(index, std::move(name), transport, waker, thread, dispatch,
           // The few bytes that a probe sums are the host's.
           transport.capabilities().device_memory ? LaneProbe::Way::kRoundTrip
                                                  : LaneProbe::Way::kSum) {}

Lane::Lane(std::uint8_t index, std::string name, transport::Transport& transport, LaneWaker& waker,
           Wakeable& thread, InboxWriter<DispatchMessage>& dispatch, LaneProbe::Way probe_way)
    : index_(index),
      name_(std::move(name)),
      transport_(transport),
      waker_(waker),
      dispatch_(dispatch),
      inbox_(thread),
      held_(kHeldStart),
      probe_(index, probe_way, transport) {}

Lane::Lane(std::uint8_t index, std::string name, transport::NetworkTransport& transport,
           LaneWaker& waker, Wakeable& thread, InboxWriter<DispatchMessage>& dispatch,
           InboxWriter<PeersMessage>& peers)
    : Lane(index, std::move(name), static_cast<transport::Transport&>(transport), waker, thread,
           dispatch, LaneProbe::Way::kRoundTrip) {
  groups_.emplace(index, transport, dispatch, peers);
}

bool Lane::Turn(TimeNs now, Messages which) {
  const bool flushed = dispatch_.Flush(now);
  const bool handled = HandleInbox(which);
  probe_.Post(now);
  PostHeld(now);
  completions_.clear();
  const bool more = transport_.DoWork(now, completions_);
  probe_.HandleCompletions(completions_);
  bool answered = false;
  while (auto answer = probe_.Next()) {
    Answer(std::move(*answer));
    answered = true;  // another probe may have come meanwhile
  }
  const bool measured = groups_ && groups_->Work(completions_, now);
  for (const transport::Completion& completion : completions_) Report(completion);
  bool passed = groups_ && groups_->PassStaging(dispatch_);
  passed |= groups_ && groups_->PassNotices(dispatch_);
  return flushed || more || measured || answered || passed || handled || !completions_.empty();
}

// In their order, so that one which has to wait holds up those behind it.
bool Lane::HandleInbox(Messages which) {
  if (next_message_ == messages_.size()) {
    inbox_.PopAll(messages_);
    next_message_ = 0;
  }
  const std::size_t first = next_message_;
  for (; next_message_ < messages_.size(); ++next_message_) {
    LaneMessage& message = messages_[next_message_];
    const bool takes_long =
        std::holds_alternative<OpenGroup>(message) || std::holds_alternative<MeasureGroup>(message);
    if (takes_long && which == Messages::kShort) break;
    Handle(std::move(message));
  }
  return next_message_ > first;
}

void Lane::Handle(LaneMessage message) {
  if (auto* start = std::get_if<StartStage>(&message)) {
    HR_CHECK((start->transfer.token & kOwnToken) == 0, name_, start->transfer.token);
    ++open_count_;
    if (held_.full()) held_.set_capacity(held_.capacity() * 2);
    held_.push_back(std::move(start->transfer));
  } else if (const auto* cancel = std::get_if<CancelStage>(&message)) {
    Cancel(cancel->token);
  } else if (const auto* ask = std::get_if<AskStage>(&message)) {
    Answer(StageWaits{index_, ask->token, transport_.Missing(ask->token), transport_.FlowedNs()});
  } else if (const auto* probe = std::get_if<ProbeLane>(&message)) {
    if (probe_.Ask(probe->token)) return;
    Answer(LaneAnswered{
        index_, probe->token,
        Error(Code::kExhausted, std::to_string(LaneProbe::kAskedMax) + " probes of lane " + name_ +
                                    " have no answer yet: it moves nothing, or is asked too "
                                    "often")});
  } else {
    HR_CHECK(groups_.has_value(), message.index());
    groups_->Handle(message);
  }
}

void Lane::PostHeld(TimeNs now) {
  while (!held_.empty() &&
         transport_.Post(held_.front(), now) == transport::PostResult::kAccepted) {
    // Only then may the other node send: as often as there are receives in flight.
    if (held_.front().kind == kReceive) dispatch_.Send(ReceivePosted{index_, held_.front().token});
    held_.pop_front();
  }
}

void Lane::Cancel(std::uint64_t token) {
  const auto found = std::find_if(
      held_.begin(), held_.end(),
      [token](const transport::Transfer& transfer) { return transfer.token == token; });
  if (found == held_.end()) {
    transport_.Cancel(token);
    return;
  }
  held_.erase(found);
  Report({.token = token, .code = Code::kCancelled});
}

// A dispatch that is too far behind to take it will be asked again.
void Lane::Answer(DispatchMessage message) { dispatch_.TrySend(std::move(message)); }

void Lane::Report(const transport::Completion& completion) {
  // One end for each stage: a second one would give dispatch a credit that it never took.
  HR_CHECK(open_count_ > 0 && (completion.token & kOwnToken) == 0, name_, open_count_,
           completion.token);
  --open_count_;
  // At most as many wait as dispatch has stages in flight.
  dispatch_.Send(
      StageEnded{.lane = index_, .completion = completion, .flowed_ns = transport_.FlowedNs()});
}

}  // namespace headrace::service
