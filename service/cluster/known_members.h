// What a node's leases have told of the members of its jobs: who is attached, and who is lost for
// good, and why. Pure.
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

// Jobs whose members a node remembers; beyond that the oldest are forgotten, whose lost members are
// then waited for through the grace time.
inline constexpr std::size_t kJobsRememberedMax = 256;
// Members of one of them; beyond that the first that is not attached is forgotten.
inline constexpr std::size_t kMembersRememberedMax = 4 * transport::kMembersMax;

class KnownMembers {
 public:
  using JobKey = JobDirectory::JobKey;
  struct Member {
    SessionId session;  // that it has, if it is attached
    std::string lost;   // why; empty: it is not
  };
  struct Job {
    JobKey key;
    std::uint32_t epoch = 0;
    std::map<std::uint32_t, Member> members;
  };

  Job* Find(const JobKey& key);
  const Job* Find(const JobKey& key) const;
  // `is_needed`: jobs that are not forgotten for others.
  Job& Remember(const JobKey& key, const std::function<bool(const JobKey&)>& is_needed);
  void Forget(const JobKey& key);
  bool HasAttached(const JobKey& key) const;
  static void Note(Job& job, std::uint32_t number, Member member);

 private:
  void ForgetOne(const std::function<bool(const JobKey&)>& is_needed);

  std::deque<Job> jobs_;  // the newest last
};

}  // namespace headrace::service
