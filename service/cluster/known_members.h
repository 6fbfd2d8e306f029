// What a node knows of the members of its jobs from their leases: which are attached, which are
// lost for good, and why. Runs on the thread of its owner. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>

#include "ipc/base/ids.h"
#include "service/cluster/job_directory.h"
#include "transport/transport.h"

namespace headrace::service {

// Limit of jobs. Beyond it the oldest is dropped; its lost members are then waited for until their
// grace time ends.
inline constexpr std::size_t kJobsRememberedMax = 256;
// Limit of members of a job. Beyond it the first member that is not attached is dropped.
inline constexpr std::size_t kMembersRememberedMax = 4 * transport::kMembersMax;

class KnownMembers {
 public:
  using JobKey = JobDirectory::JobKey;
  struct Member {
    SessionId session;  // its session, if it is attached
    std::string lost;   // why it is lost; empty: it is not lost
  };
  struct Job {
    JobKey key;
    std::uint32_t epoch = 0;
    std::uint32_t stall_ms = 0;  // QuorumRules, as its ranks gave it when they attached
    std::map<std::uint32_t, Member> members;
  };

  Job* Find(const JobKey& key);
  const Job* Find(const JobKey& key) const;
  // `is_needed`: jobs that must not be dropped to make room.
  Job& Remember(const JobKey& key, const std::function<bool(const JobKey&)>& is_needed);
  void Forget(const JobKey& key);
  bool HasAttached(const JobKey& key) const;
  static void Note(Job& job, std::uint32_t number, Member member);

 private:
  void ForgetOne(const std::function<bool(const JobKey&)>& is_needed);

  std::deque<Job> jobs_;  // oldest first
};

}  // namespace headrace::service
