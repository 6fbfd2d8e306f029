#include "service/peers/job_settings.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ipc/base/foreign_text.h"
#include "service/loop/text.h"

namespace headrace::service {
namespace {

constexpr std::size_t kAskersMax = 1024;

}  // namespace

Status JobSettings::CheckPace(std::uint32_t uid) {
  // Forgetting all of them now and then costs nothing but a little more patience with them.
  if (askers_.size() >= kAskersMax && !askers_.contains(uid)) askers_.clear();
  if (askers_[uid].asked.Take(MonotonicNow())) return {};
  return Error(Code::kBusy, fmt::format("uid {} has asked for {} changes within {} s: ask again "
                                        "after that",
                                        uid, kAskedMax, kAskedWindow / kSecond));
}

Result<JobSettings::Found> JobSettings::Find(std::string_view job, std::uint32_t uid,
                                             const std::string& wish) {
  std::vector<Found> found;
  for (const KnownJob& each : plans_.FindJobs(job)) found.push_back({.job = each, .local = true});
  for (const KnownJob& each : peers_.follower().FindJobs(job)) found.push_back({.job = each});
  if (found.empty()) {
    return Error(Code::kNotFound,
                 fmt::format("no job {} has ranks on this node: `headracectl jobs` lists those "
                             "that do",
                             Printable(job, kJobNameShownMax)));
  }
  // While one job of that name ends, the next may have begun: that one is meant.
  std::sort(found.begin(), found.end(), [](const Found& one, const Found& other) {
    return one.job.id.value > other.job.id.value;
  });
  const auto allowed = std::find_if(found.begin(), found.end(), [uid](const Found& each) {
    return uid == each.job.uid || uid == 0 || uid == ::geteuid();
  });
  if (allowed != found.end()) return *allowed;
  const KnownJob& other = found.front().job;
  if (askers_[uid].refused.Take(MonotonicNow())) {
    ShowEvent(Code::kPermissionDenied, other.id,
              fmt::format("job {}: refused uid {}, who asked for {}; it belongs to uid {}", job,
                          uid, wish, other.uid));
  }
  return Error(Code::kPermissionDenied,
               fmt::format("job {} belongs to uid {}, you are uid {}: ask its owner, or as root or "
                           "the user of the service",
                           job, other.uid, uid));
}

void JobSettings::ShowEvent(Code code, JobId job, std::string text) {
  // A watch that is so far behind loses what people would read, nothing else.
  [[maybe_unused]] const bool sent =
      ports_.watch.Send(Event{.code = code, .job = job, .text = std::move(text)});
}

Status JobSettings::Change(const ChangeSetting& message) {
  const auto* steering = std::get_if<Steering>(&message.setting);
  // The service's own, once in its life for each job.
  const bool moves = steering != nullptr && MovesOver(*steering);
  if (Status status = moves ? Status() : CheckPace(message.uid); !status) return status;
  if (const auto* policy = std::get_if<plan::Policy>(&message.setting)) {
    return SetPolicy(message, *policy);
  }
  return Steer(message, *steering);
}

Status JobSettings::SetPolicy(const ChangeSetting& message, plan::Policy policy) {
  const std::string wish = fmt::format("the policy {}", plan::Name(policy));
  const Result<Found> found = Find(message.job, message.uid, wish);
  if (!found) return found.error();
  ShowEvent(Code::kOk, found->job.id,
            fmt::format("job {}: uid {} asks for {}", message.job, message.uid, wish));
  if (found->local) {
    plans_.Want(found->job.id, policy);
  } else {
    peers_.Want(found->job.id, policy);
  }
  return {};
}

Status JobSettings::Steer(const ChangeSetting& message, const Steering& steering) {
  const std::string wish = DescribeSteering(steering);
  const Result<Found> found = Find(message.job, message.uid, wish);
  if (!found) return found.error();
  const JobId id = found->job.id;
  if (found->local && !ports_.dispatch.Send(SteerJob{.job = id, .steering = steering})) {
    return Error(Code::kBusy, "the service is behind with its messages: try again");
  }
  ShowEvent(Code::kOk, id,
            fmt::format("job {}: uid {} asks for {}", message.job, message.uid, wish));
  if (!found->local) {
    peers_.Steer(id, steering);
  } else if (steering.kind == SteeringKind::kCancel) {
    // It takes no rank any more.
    outbox_.Send(ports_.rpc,
                 JobFailed{.job = id, .code = Code::kCancelled, .cause = DescribeEnd(steering)});
  }
  return {};
}

}  // namespace headrace::service
