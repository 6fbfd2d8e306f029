#include "service/peers/job_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ipc/base/check.h"
#include "ipc/base/foreign_text.h"
#include "service/cluster/setting_changes.h"
#include "service/loop/text.h"
#include "service/schedule/queue.h"

namespace headrace::service {
namespace {

constexpr std::size_t kAskersMax = 1024;

// Whether the job gets more of what it shares with jobs of others than one that nobody has steered.
bool Raises(const Steering& steering) {
  constexpr schedule::JobShare kDefault;
  return (steering.kind == SteeringKind::kWeight && steering.value > kDefault.weight) ||
         (steering.kind == SteeringKind::kPriority && steering.value > kDefault.priority);
}

}  // namespace

Status JobSettings::CheckPace(std::uint32_t uid) {
  // Forgetting all of them now and then costs nothing but a little more patience with them.
  if (askers_.size() >= kAskersMax && !askers_.contains(uid)) askers_.clear();
  if (askers_[uid].asked.TryAcquire(MonotonicNow())) return {};
  return Error(Code::kBusy, fmt::format("uid {} has asked for {} changes within {} s: ask again "
                                        "after that",
                                        uid, kAskedMax, kAskedWindow / kSecond));
}

Result<KnownJob> JobSettings::Find(const ChangeSetting& message, const std::string& request) {
  std::vector<KnownJob> found = peers_.follower().FindJobs(message.job);
  if (message.owner) {
    std::erase_if(found, [&message](const KnownJob& each) { return each.uid != message.owner; });
  }
  if (found.empty()) {
    return Error(Code::kNotFound,
                 fmt::format("no job {}{} has ranks on this node: `headracectl jobs` lists those "
                             "that do",
                             Printable(message.job, kJobNameShownMax),
                             message.owner ? fmt::format(" of uid {}", *message.owner) : ""));
  }
  // While one job of that name ends, the next may have begun: that one is meant.
  const KnownJob newest = found.back();
  if (message.uid != 0 && message.uid != ::geteuid()) {
    std::erase_if(found, [&message](const KnownJob& each) { return each.uid != message.uid; });
  }
  if (found.empty()) {
    ReportRefused(message, newest, request);
    return Error(Code::kPermissionDenied,
                 fmt::format("job {} belongs to uid {}, you are uid {}: ask its owner, or as root "
                             "or the user of the service",
                             message.job, newest.uid, message.uid));
  }
  std::set<std::uint32_t> owners;
  for (const KnownJob& each : found) owners.insert(each.uid);
  if (owners.size() > 1) {
    return Error(Code::kInvalidArgument,
                 fmt::format("{} users have a job {}: uids {}; say whose is meant, with --uid",
                             owners.size(), message.job, fmt::join(owners, ", ")));
  }
  return found.back();
}

void JobSettings::ReportRefused(const ChangeSetting& message, const KnownJob& job,
                                const std::string& request) {
  // Whoever asks was counted before, so that strangers' uids fill nothing.
  HR_CHECK(askers_.contains(message.uid) && askers_.size() <= kAskersMax, message.uid,
           askers_.size());
  if (!askers_[message.uid].refused.TryAcquire(MonotonicNow())) return;
  ShowEvent(Code::kPermissionDenied, job.id,
            fmt::format("job {}: refused uid {}, who asked for {}; it belongs to uid {}",
                        message.job, message.uid, request, job.uid));
}

void JobSettings::ShowEvent(Code code, JobId job, std::string text) {
  // A watch that is so far behind loses what people would read, nothing else.
  [[maybe_unused]] const bool sent =
      ports_.watch.Send(Event{.code = code, .job = job, .text = std::move(text)});
}

Status JobSettings::Change(const ChangeSetting& message) {
  const auto* steering = std::get_if<Steering>(&message.setting);
  HR_CHECK(steering == nullptr ||
               CheckNodeSteering(static_cast<std::uint8_t>(steering->kind), steering->value),
           message.job, steering->value);
  // The service's own, once in its life for each job.
  const bool moves = steering != nullptr && MovesOver(*steering);
  if (Status status = moves ? Status() : CheckPace(message.uid); !status) return status;
  if (const auto* policy = std::get_if<plan::Policy>(&message.setting)) {
    return SetPolicy(message, *policy);
  }
  return Steer(message, *steering);
}

Status JobSettings::SetPolicy(const ChangeSetting& message, plan::Policy policy) {
  const std::string request = fmt::format("the policy {}", plan::Name(policy));
  const Result<KnownJob> found = Find(message, request);
  if (!found) return found.error();
  ShowEvent(Code::kOk, found->id,
            fmt::format("job {}: uid {} asks for {}", message.job, message.uid, request));
  peers_.SetPolicy(found->id, policy);
  return {};
}

Status JobSettings::Steer(const ChangeSetting& message, const Steering& steering) {
  const std::string request = DescribeSteering(steering);
  const Result<KnownJob> found = Find(message, request);
  if (!found) return found.error();
  if (steering.kind == SteeringKind::kEvict && steering.value >= found->world_size) {
    return Error(Code::kNotFound, fmt::format("job {} has no rank {}: its ranks go from 0 to {}",
                                              message.job, steering.value, found->world_size - 1));
  }
  if (Raises(steering) && message.uid != 0 && message.uid != ::geteuid()) {
    ReportRefused(message, *found, request);
    return Error(Code::kPermissionDenied,
                 fmt::format("{} would put job {} before those of other users, and you are uid {}: "
                             "ask for it as root or the user of the service; `headracectl limit` "
                             "holds your other jobs back",
                             request, message.job, message.uid));
  }
  if (steering.kind == SteeringKind::kCompress && found->adaptive && !steering.forced) {
    const CodecChoice choice = ChoiceOfValue(steering.value).value_or(CodecChoice());
    if (Status status = CheckUnderAdaptive(message.job, choice); !status) return status;
  }
  ShowEvent(Code::kOk, found->id,
            fmt::format("job {}: uid {} asks for {}", message.job, message.uid, request));
  peers_.Steer(found->id, steering);
  return {};
}

}  // namespace headrace::service
