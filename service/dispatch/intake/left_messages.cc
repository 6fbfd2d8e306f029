#include "service/dispatch/intake/left_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace headrace::service {

void LeftMessages::Add(Job& job) {
  if (!job.IsSending()) return;
  LeftJob left{.id = job.id(), .name = job.name(), .uid = job.owner_uid(), .messages = {}};
  job.pairs().ForEachSent([&left](const Pair& pair) {
    const Operation& operation = pair.operation;
    left.messages.push_back({operation.spec.sequence, pair.node, operation.posts.deadline_ns});
  });
  DropOldest(left.uid);
  jobs_.push_back(std::move(left));
}

void LeftMessages::DropOldest(std::uint32_t uid) {
  const auto is_users = [uid](const LeftJob& job) { return job.uid == uid; };
  if (static_cast<std::size_t>(std::ranges::count_if(jobs_, is_users)) >= kJobsOfUserMax) {
    jobs_.erase(std::ranges::find_if(jobs_, is_users));
  }
  if (jobs_.size() >= kJobsMax) jobs_.erase(jobs_.begin());
}

void LeftMessages::Handle(const SendNotices& message) {
  const auto job = std::ranges::find(jobs_, message.job, &LeftJob::id);
  if (job == jobs_.end()) return;
  for (const SendNotice& notice : message.notices) {
    const bool refused = notice.kind == SendNoticeKind::kRefused;
    if (!refused && notice.kind != SendNoticeKind::kReceived) continue;
    const auto ended = std::erase_if(job->messages, [&](const Message& each) {
      return each.send == notice.send && each.node == message.node;
    });
    if (!refused || ended == 0) continue;
    watch_.TrySend(Event{notice.code, job->id,
                         fmt::format("job {}: what rank {} sent to rank {} before it left was not "
                                     "received: {}",
                                     job->name, notice.source, notice.target, notice.cause),
                         job->uid});
  }
  if (message.failure || job->messages.empty()) jobs_.erase(job);
}

bool LeftMessages::Any(TimeNs now) {
  for (LeftJob& job : jobs_) {
    std::erase_if(job.messages, [now](const Message& each) { return each.deadline_ns <= now; });
  }
  std::erase_if(jobs_, [](const LeftJob& job) { return job.messages.empty(); });
  return !jobs_.empty();
}

TimeNs LeftMessages::NextDeadline() const {
  TimeNs next_ns = kNever;
  for (const LeftJob& job : jobs_) {
    for (const Message& each : job.messages) next_ns = std::min(next_ns, each.deadline_ns);
  }
  return next_ns;
}

}  // namespace headrace::service
