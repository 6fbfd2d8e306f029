// The jobs that a service leads, and the nodes that take part in them: what is known of each, what
// is to be sent, and how a job fails or is closed. Pure.
//
// The bottom of the leader: who takes part (leader_members.h), the steps (leader_steps.h), the
// plans (leader_plans.h) and what people ask (leader_settings.h) stand on it; leader.h puts them
// together.
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
  std::string architecture{kAllReduceName};   // of jobs that name none
  plan::Policy policy = plan::Policy::kAuto;  // likewise
  std::set<std::string> peers;                // the only nodes that may come; empty: all may
  std::function<std::uint64_t()> random_key;  // never 0
  // Numbers its jobs, where their plans are made together with another leader's; empty: from 1 on.
  std::function<std::uint64_t()> next_number{};
  // Of the jobs that have all of their ranks on one node, as that node's own leader: all of them
  // are the one node's, which knows them by their JobIds.
  bool in_process = false;
};

struct ToNode {
  NodeId node = 0;
  PeerMessage message;
};

struct LedJob {
  enum class Stage : std::uint8_t { kForming, kOpening, kMeasuring, kStarting, kRunning };
  // One node's part in one job.
  struct Part {
    NodeId node = 0;
    std::uint32_t number = 0;                     // of the job on that node's connection
    std::map<std::uint32_t, std::int32_t> ranks;  // and their pids
    bool server = false;
    std::size_t place = 0;  // in agreement.nodes, once there is an agreement
    bool answered = false;  // the step that is under way
    bool forgot = false;
    std::string announced;  // what it waits for, as its node was sent
    bool drained = false;   // and nothing of the job is open on it
    Allowance late_reports{kLateReportsMax, kLateReportsWindow};
  };

  std::string name;
  std::uint32_t world_size = 1;
  std::uint32_t uid = 0;
  std::string architecture;
  std::uint32_t epoch = 1;         // newer than all that its ranks were in
  bool goes_on = false;            // its first rank to attach was in one before
  std::uint64_t members_hash = 0;  // likewise, as that rank was told
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

  bool HasNode(NodeId node) const {
    return std::ranges::find(parts, node, &Part::node) != parts.end();
  }
};

class LedJobs {
 public:
  using JobNumber = std::uint64_t;
  using Jobs = std::map<JobNumber, LedJob>;
  struct Node {
    NodeFacts facts;
    std::string address;    // for people
    std::string control{};  // how its service is reached; empty: not known
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
  // Nothing more is sent to it.
  void ForgetNode(NodeId node);

  // The job that the node knows by that number.
  Jobs::iterator Find(NodeId node, std::uint32_t number);
  JobNumber NumberOf(const LedJob& job) const;
  const std::string& NameOf(const LedJob::Part& part) const {
    return nodes_.at(part.node).facts.name;
  }
  std::string DescribeRank(const LedJob::Part& part, std::uint32_t rank) const;

  // Sends every node with ranks what its job waits for, where that is new.
  void AnnounceForming(LedJob& job);
  // A node is refused, for as long as `why` is not empty. Returns whether that is new.
  bool SetRefused(const std::string& why) { return std::exchange(refused_, why) != why; }

  // Ends the job on every node with that cause, and forgets it.
  void Fail(LedJob& job, Code code, const std::string& cause);
  // Closes the job on every node once all that have ranks have forgotten it.
  void CloseIfForgotten(LedJob& job);

  void Send(const LedJob::Part& part, PeerMessage message) {
    SendTo(part.node, std::move(message));
  }
  void SendTo(NodeId node, PeerMessage message);
  void Report(ToWatch message) { outgoing_.push_back(std::move(message)); }
  std::vector<ToNode> DrainMessages() { return std::exchange(messages_, {}); }
  std::vector<ToWatch> DrainOutgoing() { return std::exchange(outgoing_, {}); }

 private:
  std::string DescribeForming(const LedJob& job) const;
  // Of a rank or node that may be what the job waits for; empty: none was refused.
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
