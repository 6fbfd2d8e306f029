#include "service/cluster/known_members.h"

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::service {

KnownMembers::Job* KnownMembers::Find(const JobKey& key) {
  const auto found = std::ranges::find(jobs_, key, &Job::key);
  return found == jobs_.end() ? nullptr : &*found;
}

const KnownMembers::Job* KnownMembers::Find(const JobKey& key) const {
  const auto found = std::ranges::find(jobs_, key, &Job::key);
  return found == jobs_.end() ? nullptr : &*found;
}

KnownMembers::Job& KnownMembers::Remember(const JobKey& key,
                                          const std::function<bool(const JobKey&)>& is_needed) {
  if (Job* known = Find(key); known != nullptr) return *known;
  if (jobs_.size() == kJobsRememberedMax) ForgetOne(is_needed);
  HR_CHECK(jobs_.size() < kJobsRememberedMax, jobs_.size());
  jobs_.push_back({.key = key, .members = {}});
  return jobs_.back();
}

void KnownMembers::Forget(const JobKey& key) {
  std::erase_if(jobs_, [&key](const Job& each) { return each.key == key; });
}

bool KnownMembers::HasAttached(const JobKey& key) const {
  const Job* job = Find(key);
  return job != nullptr && std::ranges::any_of(job->members, [](const auto& entry) {
           return entry.second.session != SessionId{};
         });
}

// The oldest, of those that are needed no more, of the user that has the most of them.
void KnownMembers::ForgetOne(const std::function<bool(const JobKey&)>& is_needed) {
  std::map<std::uint32_t, std::size_t> counts;
  for (const Job& each : jobs_) {
    if (!is_needed(each.key)) ++counts[each.key.second];
  }
  // Rows bound the sessions that are attached, and kQuorumsAskedMax the questions.
  if (counts.empty()) return jobs_.pop_front();
  const auto most =
      std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; });
  const auto oldest = std::ranges::find_if(jobs_, [&](const Job& each) {
    return each.key.second == most->first && !is_needed(each.key);
  });
  HR_CHECK(oldest != jobs_.end(), most->first, most->second);
  jobs_.erase(oldest);
}

void KnownMembers::Note(Job& job, std::uint32_t number, Member member) {
  if (job.members.size() >= kMembersRememberedMax && !job.members.contains(number)) {
    const auto first = std::ranges::find_if(
        job.members, [](const auto& entry) { return entry.second.session == SessionId{}; });
    if (first == job.members.end()) return;
    job.members.erase(first);
  }
  job.members.insert_or_assign(number, std::move(member));
  HR_CHECK(job.members.size() <= kMembersRememberedMax, number, job.members.size());
}

}  // namespace headrace::service
