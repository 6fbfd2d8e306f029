// The jobs that a service leads and the nodes that take part in them: their state, the pending
// messages, and how a job fails or is closed. Runs on the thread of its owner. Pure.
//
// The other parts of the leader use it: members (leader_members.h), steps (leader_steps.h), plans
// (leader_plans.h) and settings (leader_settings.h). leader.h owns all of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ipc/base/architecture.h"
#include "ipc/base/clock.h"
#include "ipc/base/result.h"
#include "service/cluster/allowance.h"
#include "service/cluster/job_directory.h"
#include "service/cluster/local_messages.h"
#include "service/cluster/peer_messages.h"
#include "service/cluster/planning.h"
#include "service/cluster/setting_changes.h"
#include "service/cluster/verification.h"
#include "service/peers/messages.h"

namespace headrace::service {

// Identifies a connected service; never reused.
using NodeId = std::uint64_t;

// Limit of jobs, and of questions who is left of a job. Each job of a user counts against it twice
// for that user, so one alone comes to half of them.
inline constexpr std::size_t kJobsLedMax = 256;
// Limit of jobs of one node, so that no three nodes can use up kJobsLedMax.
inline constexpr std::size_t kJobsOfNodeMax = 64;
// Limit of reports of late ranks of one job that are forwarded for a node.
inline constexpr int kLateReportsMax = 4;
inline constexpr TimeNs kLateReportsWindow = 10 * kSecond;

struct LeaderOptions {
  std::uint32_t protocol_version = 0;
  std::string program;    // "headraced 0.1.0"
  std::string node_name;  // name of this node, for texts
  std::size_t lanes_count = 0;
  std::uint32_t nccl_lanes = 0;  // JobNodes::nccl_lanes
  std::uint64_t block_bytes = 0;
  std::uint32_t verify = 0;  // JobNodes::verify
  transport::Algorithm algorithm = transport::Algorithm::kAuto;
  Architecture architecture = Architecture::kAllReduce;  // for jobs that name none
  plan::Policy policy = plan::Policy::kAuto;             // likewise
  std::set<std::string> peers;                // the only nodes that may join; empty: all may
  std::function<std::uint64_t()> random_key;  // returns no 0
  // Numbers the jobs if plans of another leader are made by the same planner; empty: 1, 2, ...
  std::function<std::uint64_t()> next_number{};
  // Whether this leads only the jobs that have all ranks on this node. All of them belong to one
  // node, which identifies them by their JobIds.
  bool in_process = false;
};

struct ToNode {
  NodeId node = 0;
  PeerMessage message;
};

struct LedJob {
  enum class Phase : std::uint8_t { kForming, kOpening, kMeasuring, kStarting, kRunning };
  // One node in one job.
  struct Participant {
    NodeId node = 0;
    std::uint32_t number = 0;                     // number of the job on that node's connection
    std::map<std::uint32_t, std::int32_t> ranks;  // pids by rank
    bool server = false;
    std::size_t place = 0;  // index in agreement.nodes, once there is an agreement
    bool answered = false;  // whether it has answered the current step
    bool forgot = false;
    std::string announced;  // the wait text last sent to the node
    bool drained = false;   // drained, and nothing of the job is open on it
    Allowance late_reports{kLateReportsMax, kLateReportsWindow};
  };

  std::string name;
  std::uint32_t world_size = 1;
  std::uint32_t uid = 0;
  std::optional<Architecture> architecture{};
  std::uint32_t epoch = 1;         // greater than all former epochs of its ranks
  bool goes_on = false;            // its first rank was in a former epoch
  std::uint64_t members_hash = 0;  // members_hash of that rank
  Phase phase = Phase::kForming;
  std::vector<Participant> participants;  // from kOpening on in the order of agreement.nodes
  Agreement agreement;
  std::set<std::uint32_t> ended;  // ranks that have left
  // The last refused node, or node that refused a rank, and why.
  std::string refused;
  std::string refused_node;
  std::optional<Steering> drain;             // the request to drain it
  std::unique_ptr<Planning> planning;        // from kStarting on
  std::optional<Verification> verification;  // from kStarting on, if results are compared

  bool HasNode(NodeId node) const {
    return std::ranges::find(participants, node, &Participant::node) != participants.end();
  }
};

class LedJobs {
 public:
  using JobNumber = std::uint64_t;
  using Jobs = std::map<JobNumber, LedJob>;
  struct Node {
    NodeFacts facts;
    std::string address;    // for texts
    std::string control{};  // address of its service; empty: not known
  };
  using Nodes = std::map<NodeId, Node>;

  LedJobs(LeaderOptions options, JobDirectory& directory)
      : options_(std::move(options)), directory_(directory) {}

  const LeaderOptions& options() const { return options_; }
  JobDirectory& directory() { return directory_; }
  const JobDirectory& directory() const { return directory_; }
  Jobs& all() { return jobs_; }
  const Jobs& all() const { return jobs_; }
  Nodes& nodes() { return nodes_; }
  const Nodes& nodes() const { return nodes_; }
  // Ends sending to the node.
  void ForgetNode(NodeId node);

  // The job with that number on the node's connection.
  Jobs::iterator Find(NodeId node, std::uint32_t number);
  JobNumber NumberOf(const LedJob& job) const;
  const std::string& NameOf(const LedJob::Participant& participant) const {
    return nodes_.at(participant.node).facts.name;
  }
  std::string DescribeRank(const LedJob::Participant& participant, std::uint32_t rank) const;

  // Sends every node with ranks what its job waits for, if that has changed; likewise those of jobs
  // of that name of other users.
  void AnnounceForming(LedJob& job);
  // Records that a node is refused; an empty `why` ends that. Returns whether that is a change.
  bool SetRefused(const std::string& why) { return std::exchange(refused_, why) != why; }

  // Fails the job on every node with that cause and forgets it.
  void FailJob(LedJob& job, Code code, const std::string& cause);
  // Closes the job on every node once all nodes with ranks have forgotten it.
  void CloseIfForgotten(LedJob& job);

  void Send(const LedJob::Participant& participant, PeerMessage message) {
    SendTo(participant.node, std::move(message));
  }
  void SendTo(NodeId node, PeerMessage message);
  void Report(ToWatch message) { outgoing_.push_back(std::move(message)); }
  std::vector<ToNode> DrainMessages() { return std::exchange(messages_, {}); }
  std::vector<ToWatch> DrainOutgoing() { return std::exchange(outgoing_, {}); }

 private:
  std::string DescribeForming(const LedJob& job) const;
  // Names a forming job of another user that ranks of this one may have joined by mistake; empty:
  // there is none.
  std::string DescribeNamesake(const LedJob& job) const;
  void AnnounceFormingOf(LedJob& job);
  // A refusal of a rank or node for which the job may wait; empty if there was none.
  const std::string& RefusalOf(const LedJob& job) const {
    return job.refused.empty() ? refused_ : job.refused;
  }

  LeaderOptions options_;
  JobDirectory& directory_;
  Nodes nodes_;
  Jobs jobs_;
  std::string refused_;
  std::vector<ToNode> messages_;
  std::vector<ToWatch> outgoing_;
};

}  // namespace headrace::service
