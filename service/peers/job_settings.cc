#include "service/peers/job_settings.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ipc/base/check.h"
#include "ipc/base/foreign_text.h"
#include "service/cluster/setting_changes.h"
#include "service/loop/text.h"

namespace headrace::service {
namespace {

constexpr std::size_t kAskersMax = 1024;

}  // namespace

Status JobSettings::CheckPace(std::uint32_t uid) {
  // Forgetting all of them now and then costs nothing but a little more patience with them.
  if (askers_.size() >= kAskersMax && !askers_.contains(uid)) askers_.clear();
  if (askers_[uid].asked.TryAcquire(MonotonicNow())) return {};
  return Error(Code::kBusy, fmt::format("uid {} has asked for {} changes within {} s: ask again "
                                        "after that",
                                        uid, kAskedMax, kAskedWindow / kSecond));
}

Result<KnownJob> JobSettings::Find(std::string_view job, std::uint32_t uid,
                                   const std::string& request) {
  const std::vector<KnownJob> found = peers_.follower().FindJobs(job);
  if (found.empty()) {
    return Error(Code::kNotFound,
                 fmt::format("no job {} has ranks on this node: `headracectl jobs` lists those "
                             "that do",
                             Printable(job, kJobNameShownMax)));
  }
  // While one job of that name ends, the next may have begun: that one is meant.
  const auto allowed = std::find_if(found.rbegin(), found.rend(), [uid](const KnownJob& each) {
    return uid == each.uid || uid == 0 || uid == ::geteuid();
  });
  if (allowed != found.rend()) return *allowed;
  const KnownJob& other = found.back();
  // Whoever asks was counted before, so that strangers' uids fill nothing.
  HR_CHECK(askers_.contains(uid) && askers_.size() <= kAskersMax, uid, askers_.size());
  if (askers_[uid].refused.TryAcquire(MonotonicNow())) {
    ShowEvent(Code::kPermissionDenied, other.id,
              fmt::format("job {}: refused uid {}, who asked for {}; it belongs to uid {}", job,
                          uid, request, other.uid));
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
  const Result<KnownJob> found = Find(message.job, message.uid, request);
  if (!found) return found.error();
  ShowEvent(Code::kOk, found->id,
            fmt::format("job {}: uid {} asks for {}", message.job, message.uid, request));
  peers_.SetPolicy(found->id, policy);
  return {};
}

Status JobSettings::Steer(const ChangeSetting& message, const Steering& steering) {
  const std::string request = DescribeSteering(steering);
  const Result<KnownJob> found = Find(message.job, message.uid, request);
  if (!found) return found.error();
  if (steering.kind == SteeringKind::kEvict && steering.value >= found->world_size) {
    return Error(Code::kNotFound, fmt::format("job {} has no rank {}: its ranks go from 0 to {}",
                                              message.job, steering.value, found->world_size - 1));
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
