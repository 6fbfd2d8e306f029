// A node's side of the jobs it takes part in: what it says to their leaders, to its dispatch and
// its lanes. Pure: no clock, no network, no log.
//
// A job without a rendezvous has all of its ranks here. Its leader is in here too, and takes the
// same messages; it has no links, and dispatch needs no leave to begin it, nor to end it for a rank
// that is gone.
//
// A job of this node is known by its JobId; one that this service only sums for (role server) has
// no JobId and is known by the leader's number; nor has one of which the leader is only told that a
// rank of it was refused here. Every failure, wherever it is found, comes here
// once as AnnounceJobFailed or as the loss of the leader; then dispatch is told and the links are
// closed, in this order. A job that ends in order keeps its links until the leader closes it, since
// others may still receive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/result.h"
#include "service/cluster/allowance.h"
#include "service/cluster/forming.h"
#include "service/cluster/layouts.h"
#include "service/cluster/leader.h"
#include "service/cluster/outgoing.h"
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
  plan::Policy policy = plan::Policy::kExact;
  std::function<std::uint64_t()> next_number{};  // LeaderOptions::next_number
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
                                    NoteRefusal, Answered>;

class Follower {
 public:
  explicit Follower(FollowerOptions options);

  // Whether the rank may attach to a job of that name; the ranks on this node are the rank table's.
  Status CheckAttach(std::string_view job, std::uint32_t rank) const;
  void OnRankAttached(const SessionIdentity& identity);
  // Answered by an action: kUnavailable with what the job waits for if it cannot run yet.
  void Handle(const AskForming& message, TimeNs now);
  // `exited`: with its process.
  void OnRankLost(JobId job, std::uint32_t rank, const std::string& cause, bool exited = false);
  // A rank of a job without a rendezvous is gone, lost or not.
  void OnRankEnded(JobId job, std::uint32_t rank);
  // The service took no session for a rank of a job that gathers, here or elsewhere: who waits for
  // it would wait in vain.
  void Handle(const RankRefused& message);

  // Whether the rank of that job may hand the layout in, and that it has. A rank of an unknown job
  // may: it has ended, and dispatch says so.
  Status CheckLayout(JobId job, std::uint32_t rank, const Layout& layout,
                     std::optional<plan::Policy> policy) const;
  void OnLayoutSet(JobId job, std::uint32_t rank, std::shared_ptr<const Layout> layout,
                   std::optional<plan::Policy> policy);
  // Somebody wants plans by that policy for the job, which is known here.
  void SetPolicy(JobId job, plan::Policy policy);
  // Somebody steers the job, and may. Cancelling works at any stage; what comes before the job runs
  // is kept until then, the last of each kind.
  void Steer(JobId job, const Steering& steering);
  // The jobs of that name that have ranks here and go on, the newest last: while one ends, the
  // next may have begun. FindJob gives the newest, nothing when there is none.
  std::vector<KnownJob> FindJobs(std::string_view name) const;
  std::optional<KnownJob> FindJob(std::string_view name) const;

  void Handle(const JobFailed& message);
  void Handle(const RankLeft& message);
  void Handle(const JobEnded& message);
  void Handle(const GroupOpened& message);
  void Handle(const GroupMeasured& message);
  void Handle(const PlanAck& message);
  void Handle(const TimesSeen& message);
  void Handle(const PlanMade& message) { home_.Handle(message); }
  void Handle(const RankLate& message);
  void Handle(const BlockHashed& message);
  void Handle(const SteerJob& message) { Steer(message.job, message.steering); }

  void OnLeaderUp(const std::string& leader);
  // An attempt to reach it failed; `cause` names it. Ends the jobs whose ranks' patience is over.
  void OnLeaderUnreachable(const std::string& leader, const std::string& cause, TimeNs now);
  void OnLeaderRefused(const std::string& leader, const Error& error);  // it will not have us
  // The connection is gone: it broke, or LeaveLeader was carried out.
  void OnLeaderDown(const std::string& leader, const Error& error);
  void Handle(const std::string& leader, const PeerMessage& message, TimeNs now);

  // When Expire is due, kNever: no job is forming. Expire ends the jobs, everywhere, that have been
  // forming for longer than they may, and answers who has asked long enough ago.
  TimeNs NextDeadline() const;
  void Expire(TimeNs now);

  // What to do since the last call, in order.
  std::vector<FollowerAction> TakeActions();
  std::size_t jobs_count() const { return jobs_.size(); }

 private:
  enum class Stage : std::uint8_t {
    kReaching,   // no connection to the leader yet
    kJoined,     // the leader knows of it
    kOpening,    // lanes open the group
    kMeasuring,  // open; lanes measure it, or will
    kMeasured,   // the leader has what they measured
    kRunning,    // dispatch was told
    kFailed,     // dispatch was told, and has not forgotten it yet
  };
  struct AttachedRank {
    std::int32_t pid = 0;
    std::uint32_t after_epoch = 0;
  };
  struct Job {
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
    Stage stage = Stage::kReaching;
    bool forgotten = false;                  // by dispatch, or never known to it
    std::optional<ReportJobFailed> refused;  // sent to the leader as soon as it is reached
    std::string shown;                       // what it waits for, as dispatch was told
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
  using Jobs = std::map<std::uint32_t, Job>;  // by number

  // It has no rendezvous, and its leader is in here.
  static bool IsLedHere(const Job& job) { return job.leader.empty(); }

  void Handle(Job& job, const AnnounceJobForming& waits);
  void Handle(Job& job, const OpenJob& open);
  void Handle(Job& job, const MeasureJob& measure);
  void Handle(Job& job, const StartJob& start);
  void Handle(Job& job, const AnnounceJobFailed& failure);
  void Handle(Job& job, const AnnounceRankLeft& gone);
  void Handle(Job& job, const CloseJob& close);
  void Handle(Job& job, const PlanPiece& piece);
  void Handle(Job& job, const AnnouncePlanSwitch& change);
  void Handle(Job& job, const AnnounceSteering& steer);
  void Handle(Job& job, const AnnounceRankLate& late, TimeNs now);

  Job* Find(JobId id);
  // What its ranks' users can do about a leader that does not answer.
  static std::string Advice(const Job& job);
  Job* FindGroup(std::uint32_t group);
  std::size_t PlaceOf(std::uint8_t lane) const;
  // Between nodes.
  std::size_t LanesOf(const Job& job) const { return IsLedHere(job) ? 0 : options_.lanes.size(); }
  std::vector<std::uint32_t> RanksOf(const Job& job) const;
  Status CheckAgreement(const Job& job, const OpenJob& open) const;
  Status CheckLanes(const Job& job, const Agreement& agreement) const;
  void AddServed(const std::string& leader, const OpenJob& open);
  void Join(Job& job);
  // All lanes have answered.
  void LinksOpened(Job& job);
  void LinksMeasured(Job& job);
  void ReportRefused(const RankRefused& message, const std::string& cause);
  void SendRankAttached(const Job& job, std::uint32_t rank);
  void ReportForming(Job& job, const std::string& text);
  // Answers those who have asked what the job waits for.
  void AnswerForming(Job& job);
  void AnswerForming(const Job& job, RequestToken token);
  void SendPendingSettings(Job& job);
  void SendLayoutIfComplete(Job& job);
  // The leader has sent what no honest one sends: the job ends here, whatever the leader makes of
  // it.
  void OnProtocolError(Job& job, const std::string& what);
  void Fail(Job& job, Code code, const std::string& cause);
  void CloseLinks(const Job& job, const std::string& cause);
  void Erase(const Job& job);
  void LeaveIfIdle(const std::string& leader);
  void SendToLeader(const Job& job, PeerMessage message);
  void SendToDispatch(ToDispatch message);

  FollowerOptions options_;
  Jobs jobs_;
  Forming forming_;  // jobs with ranks here, by number
  std::set<std::string> leaders_up_;
  std::uint32_t groups_served_ = 0;
  std::uint32_t refused_reported_ = 0;
  Leader home_;  // of the jobs without a rendezvous
  std::vector<PeerMessage> to_home_;
  std::vector<FollowerAction> actions_;
};

}  // namespace headrace::service
