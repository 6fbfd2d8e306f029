#include "service/control/helm.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

namespace headrace::service {
namespace {

constexpr std::size_t kAskersMax = 1024;

}  // namespace

Status Helm::CheckPace(std::uint32_t uid) {
  // Forgetting all of them now and then costs nothing but a little more patience with them.
  if (askers_.size() >= kAskersMax && !askers_.contains(uid)) askers_.clear();
  if (askers_[uid].asked.Take(MonotonicNow())) return {};
  return Error(Code::kBusy, fmt::format("uid {} has asked for {} changes within {} s: ask again "
                                        "after that",
                                        uid, kAskedMax, kAskedWindow / kSecond));
}

Result<Helm::Found> Helm::Find(std::string_view job, std::uint32_t uid, const std::string& wish) {
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
    desk_.leases.Say(Code::kPermissionDenied, other.id,
                     fmt::format("job {}: refused uid {}, who asked for {}; it belongs to uid {}",
                                 job, uid, wish, other.uid));
  }
  return Error(Code::kPermissionDenied,
               fmt::format("job {} belongs to uid {}, you are uid {}: ask its owner, or as root or "
                           "the user of the service",
                           job, other.uid, uid));
}

void Helm::SayWish(const Found& found, std::string_view job, std::uint32_t uid,
                   const std::string& wish) {
  desk_.leases.Say(Code::kOk, found.job.id,
                   fmt::format("job {}: uid {} asks for {}", job, uid, wish));
}

Status Helm::SetPolicy(std::string_view job, std::string_view policy, std::uint32_t uid) {
  const Result<std::optional<plan::Policy>> wanted = ReadPolicyName(policy);
  if (!wanted) return wanted.error();
  if (!*wanted) return Error(Code::kInvalidArgument, "no policy was named");
  if (Status status = CheckPace(uid); !status) return status;
  const std::string wish = fmt::format("the policy {}", policy);
  const Result<Found> found = Find(job, uid, wish);
  if (!found) return found.error();
  SayWish(*found, job, uid, wish);
  if (found->local) {
    plans_.Want(found->job.id, **wanted);
  } else {
    peers_.Want(found->job.id, **wanted);
  }
  return {};
}

Status Helm::Steer(std::string_view job, std::uint8_t kind, std::uint64_t value,
                   std::uint32_t uid) {
  if (Status status = CheckSteering(kind, value); !status) return status;
  if (Status status = CheckPace(uid); !status) return status;
  const Steering steering{.kind = static_cast<SteeringKind>(kind), .value = value, .uid = uid};
  const Result<Found> found = Find(job, uid, DescribeSteering(steering));
  if (!found) return found.error();
  const JobId id = found->job.id;
  if (found->local && !desk_.dispatch.Send(SteerJob{.job = id, .steering = steering})) {
    return Error(Code::kBusy, "the service is behind with its messages: try again");
  }
  SayWish(*found, job, uid, DescribeSteering(steering));
  if (!found->local) {
    peers_.Steer(id, steering);
  } else if (steering.kind == SteeringKind::kCancel) {
    // It takes no rank any more.
    desk_.leases.FailJob(id, Code::kCancelled, DescribeEnd(steering));
  }
  return {};
}

}  // namespace headrace::service
