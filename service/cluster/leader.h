// The leader's side of every job that meets at this service: who has come, what is missing, and the
// steps from "all are here" to "blocks may travel". Pure: no clock, no network, no log.
//
// A job is forming until all of its ranks are seated. Ranks that contradict those that have come
// end it for all of them. Then each step goes to every node and waits for all answers: open the
// links, measure them, start with the slowest lines measured and one hash. A failure at any step
// ends the job on every node with the first cause, and the leader forgets it: the next join under
// that name begins a new epoch. A job that ends in order is closed on every node when the last of
// them has forgotten it.
//
// A job whose nodes hand in layouts gets its plans here too: see planning.h.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/result.h"
#include "service/cluster/allowance.h"
#include "service/cluster/lost_epochs.h"
#include "service/cluster/outgoing.h"
#include "service/cluster/peer_messages.h"
#include "service/cluster/planning.h"
#include "service/cluster/refused_ranks.h"
#include "service/cluster/setting_changes.h"
#include "service/cluster/verification.h"
#include "service/peers/messages.h"

namespace headrace::service {

// A connected service; numbers are never used again.
using NodeId = std::uint64_t;

inline constexpr std::size_t kJobsLedMax = 256;
inline constexpr std::size_t kJobsOfNodeMax = 64;  // so that four nodes are needed to fill the rest
// Reports of late ranks of one job that a node may have passed on to the others.
inline constexpr int kLateReportsMax = 4;
inline constexpr TimeNs kLateReportsWindow = 10 * kSecond;

struct LeaderOptions {
  std::uint32_t protocol_version = 0;
  std::string program;    // "headraced 0.1.0"
  std::string node_name;  // of the leading service, for texts
  std::size_t lanes_count = 0;
  std::uint32_t gpu_lanes = 0;  // JobNodes::gpu_lanes
  std::uint64_t block_bytes = 0;
  std::uint32_t verify = 0;  // JobNodes::verify
  transport::Algorithm algorithm = transport::Algorithm::kAuto;
  std::string architecture{kAllReduceName};    // of jobs that name none
  plan::Policy policy = plan::Policy::kExact;  // likewise
  std::set<std::string> peers;                 // the only nodes that may come; empty: all may
  std::function<std::uint64_t()> random_key;   // never 0
  // Numbers its jobs, where their plans are made together with another leader's; empty: from 1 on.
  std::function<std::uint64_t()> next_number{};
  // Of the jobs that have all of their ranks on one node, as that node's own leader: all of them
  // are the one node's, which knows them by their JobIds.
  bool in_process = false;
};

// A node whose ranks were not taken into a job, or that was in it with them.
struct RefusedNode {
  std::string name;
  std::string address;
  std::string why;
};

struct ToNode {
  NodeId node = 0;
  PeerMessage message;
};

class Leader {
 public:
  explicit Leader(LeaderOptions options) : options_(std::move(options)) {}

  // Whether a service that introduces itself so may come in; `address` is where it comes from.
  Status CheckNode(const NodeFacts& facts, const std::string& address) const;
  void OnNodeUp(NodeId node, NodeFacts facts, std::string address);
  // One was not let in, or did not let this one: those who wait here may wait for it, and are told
  // for as long as they wait; so are those who come later, until `why` is empty.
  void OnNodeRefused(const std::string& why);
  // Its connection is gone; `cause` names the node.
  void OnNodeDown(NodeId node, Code code, const std::string& cause);
  // What is not from a node, or about a job that is over, is ignored.
  void Handle(NodeId node, const PeerMessage& message, TimeNs now);
  // The answer to a MakePlan. Of a job that is over it is ignored.
  void Handle(const PlanMade& message);

  // What to send since the last call, in order.
  std::vector<ToNode> TakeMessages() { return std::exchange(messages_, {}); }
  std::vector<ToWatch> DrainOutgoing() { return std::exchange(outgoing_, {}); }
  // Other nodes than this one, for people.
  std::vector<RefusedNode> TakeRefused() { return std::exchange(refused_nodes_, {}); }
  std::size_t jobs_count() const { return jobs_.size(); }
  std::size_t nodes_count() const { return nodes_.size(); }

 private:
  enum class Stage : std::uint8_t { kForming, kOpening, kMeasuring, kStarting, kRunning };

  struct Node {
    NodeFacts facts;
    std::string address;  // for people
  };
  // One node's part in one job.
  struct Part {
    NodeId node = 0;
    std::uint32_t number = 0;                     // of the job on that node's connection
    std::map<std::uint32_t, std::int32_t> ranks;  // and their pids
    bool server = false;
    std::size_t place = 0;  // in agreement.nodes, once there is an agreement
    bool answered = false;  // the step that is under way
    bool forgot = false;
    std::string announced;  // what it waits for, as its node was told
    bool drained = false;   // and nothing of the job is open on it
    Allowance late_reports{kLateReportsMax, kLateReportsWindow};
  };
  struct Job {
    std::string name;
    std::uint32_t world_size = 1;
    std::uint32_t uid = 0;
    std::string architecture;
    std::uint32_t epoch = 1;  // newer than all that its ranks were in
    bool goes_on = false;     // its first rank to be seated was in one before
    Stage stage = Stage::kForming;
    std::vector<Part> parts;  // from kOpening on in the order of agreement.nodes
    Agreement agreement;
    std::set<std::uint32_t> ended;  // ranks that have left
    // The last node that may not take part, or that refused a rank, and why.
    std::string refused;
    std::string refused_node;
    std::optional<Steering> drain;             // who wants it to end after what is posted
    std::unique_ptr<Planning> planning;        // from kStarting on
    std::optional<Verification> verification;  // likewise, if results are compared
  };
  using JobNumber = std::uint64_t;
  using Jobs = std::map<JobNumber, Job>;

  void OnJoinJob(NodeId node, const JoinJob& join, TimeNs now);
  void Handle(Job& job, Part& part, const ReportRankAttached& rank);
  void Handle(Job& job, Part& part, const ReportRankLost& lost);
  void Handle(Job& job, Part& part, const ReportRankLeft& left);
  void Handle(Job& job, Part& part, const ReportJobFailed& failed, TimeNs now);
  void Handle(Job& job, Part& part, const ForgetJob& forget);
  void Handle(Job& job, Part& part, const JobOpened& opened);
  void Handle(Job& job, Part& part, const JobMeasured& measured);
  void Handle(Job& job, Part& part, const JobStarted& started);
  void Handle(Job& job, Part& part, const ReportLayout& layout);
  void Handle(Job& job, Part& part, const ReportTimesSeen& times);
  void Handle(Job& job, Part& part, const RequestPolicy& request);
  void Handle(Job& job, Part& part, const ReportPlanAck& ack);
  void Handle(Job& job, Part& part, const RequestSteering& request);
  void Handle(Job& job, Part& part, const ReportRankLate& late, TimeNs now);
  void Handle(Job& job, Part& part, const ReportBlockHashed& hashed);

  Jobs::iterator Find(NodeId node, std::uint32_t number);
  // The job of that name that still takes nodes, a new one, or why neither.
  Result<JobNumber> Place(const JoinJob& join, TimeNs now);
  Status CheckJoin(NodeId node, const JoinJob& join, const Job& job) const;
  Status CheckRankAttached(const Job& job, const Part& part, const ReportRankAttached& rank) const;
  void RemovePart(JobNumber number, NodeId node);
  void NoteRefused(NodeId node, const std::string& why);

  void FormIfComplete(Job& job);
  void AddServers(Job& job);
  void Agree(Job& job);
  void BeginStep(Job& job, Stage stage);
  bool Answer(Job& job, Part& part, Stage stage);
  void Advance(Job& job);
  void BeginPlanning(Job& job);
  // Carries out what the job's planning wants; the job may be gone afterwards.
  void AdvancePlanning(Job& job);
  void Execute(Job& job, const MakePlan& make);
  void Execute(Job& job, const PlanOffer& offer);
  void Execute(Job& job, const PlanSwitch& change);
  void Execute(Job& job, const PlanNote& note);
  bool IsDrain(const Job& job, const ReportJobFailed& failed) const;
  void OnNodeDrained(Job& job, Part& part);
  void Fail(Job& job, Code code, const std::string& cause);
  void CloseIfForgotten(Job& job);
  void AnnounceForming(Job& job);
  std::string DescribeForming(const Job& job) const;
  // Of a rank or node that may be what the job waits for; empty: none was refused.
  const std::string& RefusalOf(const Job& job) const {
    return job.refused.empty() ? refused_ : job.refused;
  }
  bool WantsServers(const Job& job) const;

  JobNumber NumberOf(const Job& job) const;
  const std::string& NameOf(const Part& part) const { return nodes_.at(part.node).facts.name; }
  std::string DescribeRank(const Part& part, std::uint32_t rank) const;
  void Send(const Part& part, PeerMessage message);

  LeaderOptions options_;
  std::map<NodeId, Node> nodes_;
  Jobs jobs_;
  LostEpochs lost_;
  RefusedRanks refused_ranks_;
  std::vector<RefusedNode> refused_nodes_;
  std::string refused_;            // as NodeRefused was told
  std::uint32_t jobs_opened_ = 0;  // their epochs begin with it
  std::uint32_t servers_numbered_ = 0;
  std::vector<ToNode> messages_;
  std::vector<ToWatch> outgoing_;
};

}  // namespace headrace::service
