// Where jobs live: the services of their nodes and how they are reached, and the last decision who
// is left of them. One for each service, shared by its leader and its follower, so that whoever
// asks either finds what the other one has learned. Pure.
//
// The order of the places is the same on every node of a job: the one that leads it, then those of
// its ranks by their lowest ranks. Who has lost the job goes to the first of them that lives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "service/cluster/agreement.h"
#include "service/session/quorum.h"

namespace headrace::service {

// Jobs that a service remembers the places of; beyond that the oldest are forgotten, of the user
// that has the most of them.
inline constexpr std::size_t kPlacedJobsMax = 256;
// Leaders of before that are told where the job lives now.
inline constexpr std::size_t kFormerLeadersMax = 4;
inline constexpr std::size_t kPlaceAddressMax = 262;  // bytes of "host:port"

struct JobPlace {
  std::string node;     // its name; empty: not known
  std::string address;  // "host:port" of its service; from another service empty: its own

  friend bool operator==(const JobPlace&, const JobPlace&) = default;
};

struct JobPlaces {
  Membership membership{};         // that was decided last; no members: none was
  std::uint32_t epoch = 0;         // of the job as it is known, or of the decision
  std::vector<JobPlace> places{};  // in which its ranks meet
  std::vector<JobPlace> former{};  // led it before: whoever comes later may ask there

  bool Has(const std::string& node) const;
  // As another service is told them, and as it is told by the one at `own`: the address of whoever
  // tells is empty.
  void HideOwn(const std::string& node);
  void ShowOwn(const JobPlace& own);
  // With another first, which leads from now on; the one before is a former leader.
  void Lead(const JobPlace& leader);
  friend bool operator==(const JobPlaces&, const JobPlaces&) = default;
};

// Whether `one` was decided or agreed after `other`. Of two decisions of one number, that of which
// a job has come about has the greater epoch.
bool IsNewer(const JobPlaces& one, const JobPlaces& other);

class JobDirectory {
 public:
  using JobKey = std::pair<std::string, std::uint32_t>;  // name and uid

  const JobPlaces* Find(const JobKey& job) const;
  // Said by another service: counts if it is newer than what is known.
  void Hear(const JobKey& job, JobPlaces places);
  // Found out here: counts unless it is older.
  void Note(const JobKey& job, JobPlaces places);
  // The job runs: `leader` is how this service reaches the one that leads it.
  void NoteRunning(const JobKey& job, const Agreement& agreement, const JobPlace& leader);
  // A job of that name begins: what is known is of another.
  void Forget(const JobKey& job);

  std::uint64_t changes() const { return changes_; }

 private:
  struct Known {
    JobKey job;
    JobPlaces places;
  };
  void ForgetOne();

  std::deque<Known> known_;  // the newest last
  std::uint64_t changes_ = 0;
};

}  // namespace headrace::service
