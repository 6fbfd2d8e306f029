// The places of jobs: the services of their nodes, their addresses, and the last quorum decision of
// each job. Each service has one, shared by its leader and its follower, so that both know what
// either has learned. Used on their thread only. Pure.
//
// The order of the places is the same on every node of a job: the leading service first, then the
// services of its ranks by their lowest ranks. Ranks that have lost the job meet at the first place
// that can be reached.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "service/cluster/agreement.h"
#include "service/session/job_place.h"
#include "service/session/quorum.h"

namespace headrace::service {

// Limit of jobs in the directory. Beyond it the oldest of the user with the most jobs is dropped.
inline constexpr std::size_t kPlacedJobsMax = 256;
// Limit of former leaders that are told the current places of a job.
inline constexpr std::size_t kFormerLeadersMax = 4;

struct JobPlaces {
  Membership membership{};         // the last decision; no members: there was none
  std::uint32_t epoch = 0;         // the last epoch of the job, or that of the decision
  std::vector<JobPlace> places{};  // the order in which ranks try them
  std::vector<JobPlace> former{};  // former leaders: late ranks may ask there

  bool Has(const std::string& node) const;
  // HideOwn empties the sender's own address before sending. ShowOwn fills it in on receipt; `own`
  // is the sender.
  void HideOwn(const std::string& node);
  void ShowOwn(const JobPlace& own);
  // Makes `leader` the first place. The former first place becomes a former leader.
  void Lead(const JobPlace& leader);
  friend bool operator==(const JobPlaces&, const JobPlaces&) = default;
};

// Whether `one` was decided or agreed on after `other`. Of two decisions of the same generation,
// the one by which the job ran has the greater epoch.
bool IsNewer(const JobPlaces& one, const JobPlaces& other);

class JobDirectory {
 public:
  using JobKey = std::pair<std::string, std::uint32_t>;  // name and uid

  const JobPlaces* Find(const JobKey& job) const;
  // What another service reported: recorded if it is newer than what is known.
  void OnReported(const JobKey& job, JobPlaces places);
  // What this service found out: recorded unless it is older than what is known.
  void Note(const JobKey& job, JobPlaces places);
  // The job runs. `leader` is the place of the leading service as this service reaches it.
  void NoteRunning(const JobKey& job, const Agreement& agreement, const JobPlace& leader);
  // Drops the job, because a new job of the same name begins.
  void Forget(const JobKey& job);

  std::uint64_t changes() const { return changes_; }
  // The jobs that were recorded since there were so many changes.
  std::vector<JobKey> ChangedSince(std::uint64_t changes) const;

 private:
  struct Known {
    JobKey job;
    JobPlaces places;
    std::uint64_t change = 0;  // that recorded it
  };
  void ForgetOne();

  std::deque<Known> known_;  // oldest first
  std::uint64_t changes_ = 0;
};

}  // namespace headrace::service
