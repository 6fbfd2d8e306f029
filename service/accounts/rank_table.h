// Which ranks of which jobs are attached, and who may join. Pure: no clock, no socket, no log.
//
// A job is identified by its name and its user: jobs of two users are separate, whatever their
// names. A job begins with its first rank and ends when its last one is gone. A lost rank fails the
// job, and a rank that has left is not admitted again: in both cases the remaining ranks have
// posted operations that a newcomer has not, so newcomers wait until all are gone.
//
// Ranks that go on from an earlier epoch of the job, and ranks that begin, are never in one epoch,
// because they are at different iterations. So an epoch that lost a rank with its process has no
// next one, and a rank that asks for it is refused at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "ipc/base/ids.h"
#include "ipc/base/result.h"
#include "service/cluster/lost_epochs.h"

namespace headrace::service {

struct JoinRequest {
  std::string job;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::string rendezvous{};
  std::uint32_t uid = 0;
  std::int32_t pid = 0;
  SessionId session;
  std::uint32_t after_epoch = 0;   // in which the rank was before; 0: it begins
  std::uint64_t members_hash = 0;  // SessionIdentity::members_hash
};

struct RankSlot {
  JobId job;
  std::uint32_t epoch = 1;
};

// How much of the board's rows one uid may take: of the jobs, and of the ranks, as many as it
// leaves free for others, beside an eighth that is kept for root and the service's own user. So
// each next uid finds some, however many come, and the last of them one. Those two may take all.
struct RankShares {
  bool bounded = false;  // else whoever comes first takes all
  std::uint32_t service_uid = 0;
};

class RankTable {
 public:
  explicit RankTable(RankShares shares = {}) : shares_(shares) {}

  // Takes the rank's slot, or says why not, naming both sides.
  Result<RankSlot> Join(const JoinRequest& request);
  // Gives the slot back as if it had never been taken.
  void Withdraw(SessionId session);
  // The rank is gone: it left (orderly) or was lost, for `cause`. Unknown sessions are ignored.
  // `exited`: with its process, so that its job's epoch cannot go on.
  void Depart(SessionId session, bool orderly, std::string_view cause, bool exited = false);

  using JobKey = std::pair<std::string, std::uint32_t>;  // name and uid
  // The job takes no rank until all that remain are gone. None when it is unknown or has failed
  // before.
  std::optional<JobKey> FailJob(JobId job, std::string_view cause);

  // What a uid has of the board's rows, and how many it could come to while others have what they
  // have now.
  struct Share {
    std::size_t ranks = 0;
    std::size_t ranks_max = 0;
    std::size_t jobs = 0;
    std::size_t jobs_max = 0;
  };
  Share ShareOf(std::uint32_t uid) const;

  std::size_t jobs_count() const { return jobs_.size(); }
  std::size_t ranks_count() const { return sessions_.size(); }

 private:
  struct RankEntry {
    SessionId session;
    std::int32_t pid = 0;
    bool attached = true;
  };
  struct Job {
    JobId id;
    std::uint32_t world_size = 1;
    std::uint32_t epoch = 1;         // greater than all that its ranks were in before
    bool goes_on = false;            // its ranks were in one before
    std::uint64_t members_hash = 0;  // as its ranks were told
    std::string rendezvous;
    std::string failure;                       // empty: none
    std::map<std::uint32_t, RankEntry> ranks;  // by rank; with those that are gone
  };
  struct Place {
    JobKey job;
    std::uint32_t rank = 0;
  };
  struct Use {
    std::size_t jobs = 0;
    std::size_t ranks = 0;
  };

  static Status CheckNumbers(const JoinRequest& request);
  static Status CheckJoin(const JoinRequest& request, const Job& job);
  static std::string AttachedRanks(const Job& job);
  bool IsBounded(std::uint32_t uid) const {
    return shares_.bounded && uid != 0 && uid != shares_.service_uid;
  }
  Status CheckRoom(const JoinRequest& request, bool opens_job) const;
  // A rank of the job is gone, and with the last one the job.
  void EndRank(const JobKey& key);

  RankShares shares_;
  std::map<std::uint32_t, Use> uses_;  // of uids that have ranks
  std::map<JobKey, Job> jobs_;
  std::map<SessionId, Place> sessions_;
  LostEpochs lost_;
  std::uint32_t jobs_opened_ = 0;
};

inline constexpr std::size_t kJobNameMax = 63;
// 1 to kJobNameMax bytes of printable ASCII without blanks.
Status CheckJobName(std::string_view name);

}  // namespace headrace::service
