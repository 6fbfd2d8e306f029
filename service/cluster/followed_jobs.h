// The jobs that a node takes part in: what is known of each, what is to be done for it, and how it
// fails or is forgotten. Pure.
//
// The bottom of the follower: the steps to a running job (follower_steps.h), its plans
// (follower_plans.h) and what people ask (follower_settings.h) stand on it; follower.h puts them
// together.
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

// Jobs that a server sums for at one time.
inline constexpr std::size_t kJobsServedMax = 256;
// Events about late ranks of one job that a leader may cause on a node.
inline constexpr int kLateEventsMax = 16;
inline constexpr TimeNs kLateEventsWindow = 10 * kSecond;
// Ranks that were refused where no rank of their job is, that are reported to leaders at one time.
inline constexpr std::ptrdiff_t kRefusedMax = 16;

struct FollowerOptions {
  std::string node_name;            // as leaders know it
  std::vector<std::uint8_t> lanes;  // numbers of the lanes between nodes, in the agreed order
  bool server = false;
  std::uint32_t gpu_lanes = 0;  // JobNodes::gpu_lanes
  // How long a job may take from its first rank here until all of its nodes are linked; that rank's
  // own timeout counts where it is longer.
  TimeNs forming_ns = kFormingDefault;
  std::uint64_t hash_salt = 0;  // for tests: not 0 makes this node disagree
  // Of jobs all of whose ranks are here, and name none.
  plan::Policy policy = plan::Policy::kAuto;
  std::function<std::uint64_t()> next_number{};  // LeaderOptions::next_number
  // What this service calls the one at a job's place, and where it reaches one that it calls so.
  std::function<Result<std::string>(const JobPlace& place)> leader_at =
      [](const JobPlace& place) -> Result<std::string> {
    if (!place.address.empty()) return place.address;
    return Error(Code::kUnavailable, "its address is not known");
  };
  std::function<std::string(const std::string& leader)> address_of = [](const std::string& leader) {
    return leader;
  };
};

// Leaders are known by their address, as the ranks gave it.
struct ToLeader {
  std::string leader;
  PeerMessage message;
};
// A connection to that leader is needed, or no longer.
struct ReachLeader {
  std::string leader;
};
struct LeaveLeader {
  std::string leader;
};
// That leader took no rank of this node into a job.
struct NoteRefusal {
  std::string leader;
  std::string why;
};
using FollowerAction = std::variant<ToLeader, ToDispatch, ToLane, ToWatch, ReachLeader, LeaveLeader,
                                    NoteRefusal, Answered, QuorumAnswered, MembersWait>;

struct FollowedJob {
  enum class Stage : std::uint8_t {
    kReaching,   // no connection to the leader yet
    kJoined,     // the leader knows of it
    kOpening,    // lanes open the group
    kMeasuring,  // open; lanes measure it, or will
    kMeasured,   // the leader has what they measured
    kRunning,    // dispatch was sent it
    kFailed,     // dispatch was sent that, and has not forgotten it yet
  };
  struct AttachedRank {
    std::int32_t pid = 0;
    std::uint32_t after_epoch = 0;
    std::uint64_t members_hash = 0;
  };

  JobId id;                  // 0: this service only sums for it, or has refused its rank
  std::uint32_t number = 0;  // on the leader's connection
  std::uint32_t group = 0;
  std::string name;
  std::string leader;
  std::string leader_from;  // where its first rank here has that from; empty: unknown
  std::uint32_t world_size = 1;
  std::uint32_t uid = 0;
  std::string architecture;
  TimeNs patience_ns = 0;                       // until when the leader may be out of reach
  std::map<std::uint32_t, AttachedRank> ranks;  // attached here
  std::set<std::uint32_t> gone;                 // of which, of a job that is led in here
  bool goes_on = false;                         // some of them come back by themselves
  bool was_decided = false;                     // who they are; they ask again if it does not begin
  Stage stage = Stage::kReaching;
  bool forgotten = false;                  // by dispatch, or never known to it
  std::optional<ReportJobFailed> refused;  // sent to the leader as soon as it is reached
  std::string shown;                       // what it waits for, as dispatch was sent
  bool names_refusal = false;              // that does, so its users have to do something
  std::vector<AskForming> asked;           // not answered yet
  std::uint32_t self = 0;
  Agreement agreement;
  // Answers of the lanes to the step that is under way.
  std::size_t lanes_answered = 0;
  Status lanes_status;
  std::vector<transport::CostLine> costs;
  // Its plans.
  NodeLayouts layouts;
  bool layout_sent = false;                      // the leader has the layout
  std::optional<plan::Policy> requested_policy;  // before it could be sent to the leader
  PendingSteering pending_steering;              // likewise
  Allowance late_events{kLateEventsMax, kLateEventsWindow};
  PlanReassembly reassembly;
  std::shared_ptr<const plan::Plan> offered;  // shared with dispatch, which only reads it
  std::uint64_t offered_hash = 0;
  bool offered_acked = true;  // dispatch has answered
};

// A running job has failed whose ranks may ask who is left of it.
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
  // It has no rendezvous, and its leader is in here.
  static bool IsLedHere(const FollowedJob& job) { return job.leader.empty(); }
  // Between nodes.
  std::size_t LanesOf(const FollowedJob& job) const {
    return IsLedHere(job) ? 0 : options_.lanes.size();
  }

  // What the job waits for, for dispatch.
  void ReportForming(FollowedJob& job, const std::string& text);
  // Answers those who have asked what the job waits for.
  void AnswerForming(FollowedJob& job);
  void AnswerForming(const FollowedJob& job, RequestToken token);

  // The leader has sent what no honest one sends: the job ends here, whatever the leader makes of
  // it.
  void OnProtocolError(FollowedJob& job, const std::string& what);
  // The job may be gone after each of these.
  void Fail(FollowedJob& job, Code code, const std::string& cause);
  void CloseLinks(const FollowedJob& job, const std::string& cause);
  void Erase(const FollowedJob& job);

  void SendToLeader(const FollowedJob& job, PeerMessage message) {
    SendTo(job.leader, std::move(message));
  }
  // `leader` empty: that in here.
  void SendTo(const std::string& leader, PeerMessage message);
  // The connection to the leader is needed by others than jobs, as often as it is kept.
  void KeepLeader(const std::string& leader);
  void ReleaseLeader(const std::string& leader);
  // Whether there is a connection to it; that in here is always there.
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
  // For the leader in here.
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
