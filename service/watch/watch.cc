#include "service/watch/watch.h"

#include <utility>

#include "ipc/base/check.h"
#include "ipc/base/clock.h"
#include "service/plan/planner.h"

namespace headrace::service {
namespace {

using MadePlan = Result<std::shared_ptr<const plan::Plan>>;

// Null when the plan in force is as good, within the margin.
MadePlan Make(const MakePlan& request) {
  if (request.present == nullptr) {
    Result<plan::Plan> made =
        plan::MakePlan(request.policy, request.profile, request.route, request.version, {},
                       request.recording, request.codecs);
    if (!made) return made.error();
    return std::make_shared<const plan::Plan>(std::move(made).value());
  }
  Result<std::optional<plan::Plan>> made =
      plan::MakeFasterPlan(request.policy, request.profile, request.route, request.version,
                           {.plan = *request.present,
                            .iteration_s = request.iteration_s,
                            .running_s = request.running_s,
                            .margin = request.margin,
                            .tolerance = request.tolerance,
                            .codec_stops = request.codec_stops},
                           request.recording, request.codecs);
  if (!made) return made.error();
  if (!*made) return std::shared_ptr<const plan::Plan>();
  return std::make_shared<const plan::Plan>(std::move(**made));
}

}  // namespace

Watch::Watch(Wakeable& thread, InboxWriter<RpcMessage>& rpc, InboxWriter<PeersMessage>& peers,
             ipc::BoardLayout& board, EventSink log)
    : rpc_(rpc), peers_(peers), board_(board), log_(std::move(log)), inbox_(thread) {}

bool Watch::DoWork(TimeNs now) {
  bool worked = peers_.Flush(now);
  now_ = now;
  for (std::string& text : event_limits_.EndWindows(now)) {
    Show({.code = Code::kOk, .job = {}, .text = std::move(text)});
  }
  inbox_.PopAll(messages_);
  for (WatchMessage& message : messages_) {
    std::visit([this](auto& alternative) { Handle(std::move(alternative)); }, message);
  }
  worked |= !messages_.empty();
  messages_.clear();
  return Replan(now) || worked;
}

// Peers asks for one plan a job at a time. Nothing of the job moves before its first one is there.
void Watch::Handle(MakePlan message) {
  HR_CHECK(message.version >= 1, message.token);
  if (message.version > 1) {
    replans_.push_back(std::move(message));
    return;
  }
  peers_.Send(PlanMade{.token = message.token, .plan = Make(message)});
}

bool Watch::Replan(TimeNs now) {
  // This turn follows the last one as soon as that plan was made.
  if (const auto begun_ns = std::exchange(replan_begun_ns_, std::nullopt)) {
    HR_CHECK(now >= *begun_ns, now, *begun_ns);
    replan_from_ns_ = now + (kReplanningShare - 1) * (now - *begun_ns);
  }
  if (replans_.empty() || now < replan_from_ns_) return false;
  const MakePlan request = std::move(replans_.front());
  replans_.pop_front();
  peers_.Send(PlanMade{.token = request.token, .plan = Make(request)});
  replan_begun_ns_ = now;
  return true;
}

void Watch::Handle(const Ping& message) {
  // One probe is under way at a time; who receives no answer to this one says so.
  rpc_.TrySend(PartAnswered{.token = message.token, .part = ProbedPart::kWatch});
}

void Watch::Handle(const Event& event) {
  const bool is_failure = event.code != Code::kOk;
  if (!event.uid || event_limits_.Allow(*event.uid, is_failure, now_)) Show(event);
}

void Watch::Show(const Event& event) {
  log_(event);
  ipc::EventRow row{};
  row.number = ++events_;
  row.at_unix_ns = UnixNow();
  row.code = static_cast<std::uint32_t>(event.code);
  row.job_id = event.job.value;
  ipc::SetText(row.text, event.text);
  ipc::WriteRow(board_.events[(row.number - 1) % ipc::kEventRowsMax], row);
}

}  // namespace headrace::service
