// The jobs that a node takes part in: the state of each, the actions that are due, and how a job
// fails or is forgotten. Runs on the thread of its owner. Pure.
//
// The other parts of the follower use it: the steps to a running job (follower_steps.h), its plans
// (follower_plans.h) and its settings (follower_settings.h). follower.h owns all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ipc/base/architecture.h"
#include "ipc/base/clock.h"
#include "ipc/base/result.h"
#include "service/cluster/allowance.h"
#include "service/cluster/forming.h"
#include "service/cluster/job_directory.h"
#include "service/cluster/layouts.h"
#include "service/cluster/local_messages.h"
#include "service/cluster/peer_messages.h"
#include "service/cluster/plan_text.h"
#include "service/cluster/setting_changes.h"
#include "service/peers/messages.h"
#include "service/rpc/messages.h"
#include "service/session/session.h"

namespace headrace::service {

// Limit of jobs that a server sums for at a time.
inline constexpr std::size_t kJobsServedMax = 256;
// Limit of events about late ranks of one job that a leader may cause on a node.
inline constexpr int kLateEventsMax = 16;
inline constexpr TimeNs kLateEventsWindow = 10 * kSecond;
// Limit of pending reports of refused ranks whose jobs have no other rank on this node. Each report
// of a user counts against it twice for that user.
inline constexpr std::ptrdiff_t kRefusedMax = 32;

struct FollowerOptions {
  std::string node_name;            // name of this node
  std::vector<std::uint8_t> lanes;  // lane numbers of the lanes between nodes, in agreed order
  bool server = false;
  std::uint32_t nccl_lanes = 0;  // JobNodes::nccl_lanes
  // How long a job may take from its first rank here until all of its nodes are linked. The rank's
  // own timeout applies if it is longer.
  TimeNs forming_ns = kFormingDefault;
  std::uint64_t hash_salt = 0;  // tests set it to make this node's hash differ
  // For jobs that have all ranks here and name none.
  plan::Policy policy = plan::Policy::kAuto;
  std::function<std::uint64_t()> next_number{};  // LeaderOptions::next_number
  // Maps a job's place to the leader name that this service uses, and such a name to its address.
  std::function<Result<std::string>(const JobPlace& place)> leader_at =
      [](const JobPlace& place) -> Result<std::string> {
    if (!place.address.empty()) return place.address;
    return Error(Code::kUnavailable, "its address is not known");
  };
  std::function<std::string(const std::string& leader)> address_of = [](const std::string& leader) {
    return leader;
  };
};

// Leaders are named by their address as the ranks gave it.
struct ToLeader {
  std::string leader;
  PeerMessage message;
};
// Requests or releases the connection to a leader.
struct ReachLeader {
  std::string leader;
};
struct LeaveLeader {
  std::string leader;
};
// The leader has refused a rank of this node.
struct NoteRefusal {
  std::string leader;
  std::string why;
};
using FollowerAction =
    std::variant<ToLeader, ToDispatch, ToLane, ToWatch, ReachLeader, LeaveLeader, NoteRefusal,
                 Answered, QuorumAnswered, MembersWait, JobPlaced, SessionBroken>;

struct FollowedJob {
  enum class Phase : std::uint8_t {
    kReaching,   // no connection to the leader yet
    kJoined,     // the leader has accepted the join
    kOpening,    // the lanes open their links
    kMeasuring,  // links are open; lanes measure them
    kMeasured,   // the measured costs were sent to the leader
    kRunning,    // dispatch was told to run it
    kFailed,     // dispatch was told, and has not forgotten the job yet
  };
  struct AttachedRank {
    std::int32_t pid = 0;
    std::uint32_t after_epoch = 0;
    std::uint64_t members_hash = 0;
  };

  JobId id;                  // 0: this service only sums for the job, or has refused its rank
  std::uint32_t number = 0;  // on the leader's connection
  std::uint32_t group = 0;
  std::string name;
  std::string leader;
  std::string leader_from;  // where its first rank here has the address from; empty: unknown
  std::uint32_t world_size = 1;
  std::uint32_t uid = 0;
  std::optional<Architecture> architecture{};
  TimeNs patience_ns = 0;                       // deadline for reaching the leader
  std::map<std::uint32_t, AttachedRank> ranks;  // attached on this node
  std::set<std::uint32_t> gone;  // those of them that are gone, if the leader is in process
  bool goes_on = false;          // some of its ranks reconnect by themselves
  bool was_decided = false;      // its ranks come by a quorum decision and ask again if it fails
  Phase phase = Phase::kReaching;
  bool forgotten = false;                  // dispatch has forgotten it, or never knew it
  std::optional<ReportJobFailed> refused;  // sent to the leader once it is reached
  std::string shown;                       // the wait text last sent to dispatch
  bool names_refusal = false;              // `shown` names a refusal, so its users have to act
  std::vector<AskForming> asked;           // unanswered requests
  std::uint32_t self = 0;
  Agreement agreement;
  // The lanes' answers to the current step.
  std::size_t lanes_answered = 0;
  Status lanes_status;
  std::vector<transport::CostLine> costs;
  // Its plans.
  NodeLayouts layouts;
  bool layout_sent = false;                      // the leader has the layout
  std::optional<plan::Policy> requested_policy;  // kept until it can be sent to the leader
  PendingSteering pending_steering;              // kept in the same way
  Allowance late_events{kLateEventsMax, kLateEventsWindow};
  PlanReassembly reassembly;
  std::shared_ptr<const plan::Plan> offered;  // shared with dispatch, which only reads it
  std::uint64_t offered_hash = 0;
  bool offered_acked = true;  // dispatch has acknowledged it
};

// A running job has failed, and its ranks may ask which members are left.
struct LostJob {
  std::string name;
  std::uint32_t uid = 0;
  std::string leader;
};

class FollowedJobs {
 public:
  using Jobs = std::map<std::uint32_t, FollowedJob>;  // by number

  FollowedJobs(FollowerOptions options, JobDirectory& directory)
      : options_(std::move(options)), directory_(directory) {}

  const FollowerOptions& options() const { return options_; }
  JobDirectory& directory() { return directory_; }
  Jobs& all() { return jobs_; }
  const Jobs& all() const { return jobs_; }
  Forming& forming() { return forming_; }  // jobs with ranks here, by number
  const Forming& forming() const { return forming_; }

  FollowedJob* Find(JobId id);
  FollowedJob* FindGroup(std::uint32_t group);
  // Whether the job has no rendezvous, so that its leader is in process.
  static bool IsLedHere(const FollowedJob& job) { return job.leader.empty(); }
  // Number of lanes between nodes.
  std::size_t LanesOf(const FollowedJob& job) const {
    return IsLedHere(job) ? 0 : options_.lanes.size();
  }

  // Sends dispatch what the job waits for.
  void ReportForming(FollowedJob& job, const std::string& text);
  // Answers all requests for what the job waits for.
  void AnswerForming(FollowedJob& job);
  void AnswerForming(const FollowedJob& job, RequestToken token);

  // The leader has violated the protocol: the job fails on this node, whatever the leader does.
  void OnProtocolError(FollowedJob& job, const std::string& what);
  // The job may be gone after each of these.
  void FailJob(FollowedJob& job, Code code, const std::string& cause);
  void CloseLinks(const FollowedJob& job, const std::string& cause);
  void Erase(const FollowedJob& job);

  void SendToLeader(const FollowedJob& job, PeerMessage message) {
    SendTo(job.leader, std::move(message));
  }
  // An empty `leader` is the one in process.
  void SendTo(const std::string& leader, PeerMessage message);
  // Counted references to a connection, for other users than jobs.
  void KeepLeader(const std::string& leader);
  void ReleaseLeader(const std::string& leader);
  // Whether the leader is connected; the one in process always is.
  bool IsUp(const std::string& leader) const {
    return leader.empty() || leaders_up_.contains(leader);
  }
  void SetUp(const std::string& leader, bool up) {
    up ? static_cast<void>(leaders_up_.insert(leader))
       : static_cast<void>(leaders_up_.erase(leader));
  }
  void SendToDispatch(ToDispatch message) { actions_.emplace_back(std::move(message)); }
  void Add(FollowerAction action) { actions_.push_back(std::move(action)); }
  std::vector<FollowerAction> DrainActions() { return std::exchange(actions_, {}); }
  std::vector<LostJob> DrainLost() { return std::exchange(lost_, {}); }
  void NoteStarted(const FollowedJob& job) { started_.emplace_back(job.name, job.uid); }
  std::vector<JobDirectory::JobKey> DrainStarted() { return std::exchange(started_, {}); }
  // Messages for the leader in process.
  std::vector<PeerMessage> DrainToHome() { return std::exchange(to_home_, {}); }
  bool HasToHome() const { return !to_home_.empty(); }

 private:
  void LeaveIfIdle(const std::string& leader);

  FollowerOptions options_;
  JobDirectory& directory_;
  Jobs jobs_;
  Forming forming_;
  std::multiset<std::string> leaders_kept_;
  std::set<std::string> leaders_up_;
  std::vector<LostJob> lost_;
  std::vector<JobDirectory::JobKey> started_;
  std::vector<PeerMessage> to_home_;
  std::vector<FollowerAction> actions_;
};

}  // namespace headrace::service
