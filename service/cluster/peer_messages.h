// Messages between the service of a node and the service that leads a job. Plain values:
// peer_wire.h puts them on the network, a simulation passes them directly.
//
// `job` identifies a job on one connection: it is the node's own JobId or, for a server, a number
// that the leader chose. Numbers are never reused on a connection, so a message about a job that
// one side has forgotten is recognised and ignored.
//
//   node -> leader: MessageOfNode. Report... is what happened on the node, Request... is what a
//   user
//     wants.
//   leader -> node: MessageOfLeader. Announce... is a decision for all nodes of the job, or a
//   report
//     of another node.
//   both ways: Goodbye
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "ipc/base/architecture.h"
#include "ipc/base/error.h"
#include "service/cluster/agreement.h"
#include "service/cluster/job_directory.h"
#include "service/cluster/plan_text.h"
#include "service/cluster/planning_inputs.h"
#include "service/plan/plan.h"
#include "service/session/block_hash.h"
#include "service/session/layout.h"
#include "service/session/quorum.h"
#include "service/session/steering.h"
#include "transport/network.h"

namespace headrace::service {

// Numbers of jobs on a server's connection start here; lower ones are JobIds of nodes.
inline constexpr std::uint32_t kServerNumbers = 0x80000000U;

// What a service says about itself at the beginning of a connection.
struct NodeFacts {
  std::uint32_t protocol_version = 0;
  std::string program;                        // "headraced 0.1.0"
  std::string name;                           // name of the node
  std::uint64_t instance = 0;                 // random, chosen by each service at its start
  bool server = false;                        // a parameter server: has no ranks, sums shares
  std::vector<std::string> addresses;         // addresses of its lanes between nodes; opaque bytes
  std::uint32_t nccl_lanes = 0;               // number of these lanes that send GPU memory directly
  std::string control{};                      // "host:port" where it listens; the host may be "*"
  std::vector<std::string> rail_addresses{};  // "address:port" of each rail where it listens, too
};

// ---- from a node ----
struct JoinJob {
  std::uint32_t job = 0;
  std::string name;
  std::uint32_t world_size = 1;
  std::uint32_t uid = 0;
  std::optional<Architecture> architecture{};  // none: the leader's
};
struct ReportRankAttached {
  std::uint32_t job = 0;
  std::uint32_t rank = 0;
  std::int32_t pid = 0;
  std::uint32_t after_epoch = 0;   // the rank's former epoch of the job; 0: it had none
  std::uint64_t members_hash = 0;  // SessionIdentity::members_hash
};
struct ReportRankLost {
  std::uint32_t job = 0;
  std::uint32_t rank = 0;
  std::string cause;    // "exited or was killed"
  bool exited = false;  // whether its process has ended, so that it cannot reconnect
};
// The rank has called hr_close, after `posted` operations and after posting every gradient of its
// first `iterations` iterations.
struct ReportRankLeft {
  std::uint32_t job = 0;
  std::uint32_t rank = 0;
  std::uint64_t posted = 0;
  std::uint64_t iterations = 0;
};
struct ReportJobFailed {
  std::uint32_t job = 0;
  Code code = Code::kInternal;
  std::string cause;
};
// All ranks of the node are gone, and none of their operations is open.
struct ForgetJob {
  std::uint32_t job = 0;
};
// The answers to OpenJob, MeasureJob and StartJob; code kOk means success.
struct JobOpened {
  std::uint32_t job = 0;
  Code code = Code::kOk;
  std::string cause{};
};
struct JobMeasured {
  std::uint32_t job = 0;
  Code code = Code::kOk;
  std::string cause{};
  std::vector<transport::CostLine> costs{};  // one for each lane
};
struct JobStarted {
  std::uint32_t job = 0;
  std::uint64_t hash = 0;  // hash of the agreement on this node
};
// All ranks of the node have registered this layout.
struct ReportLayout {
  std::uint32_t job = 0;
  std::shared_ptr<const Layout> layout;  // shared with dispatch, which only reads it; never null
  std::optional<plan::Policy> policy;    // nothing: the leader's
};
// The times of iterations on the node, and the costs of its lanes during them.
struct ReportTimesSeen {
  std::uint32_t job = 0;
  NodeSeen seen;
};
// A user of the node wants another policy.
struct RequestPolicy {
  std::uint32_t job = 0;
  plan::Policy policy = plan::Policy::kExact;
};
// A setting change by a user of the node. The node has checked that the user may change the job.
struct RequestSteering {
  std::uint32_t job = 0;
  Steering steering;
};
// All ranks wait for a rank of this node: RankLate::text.
struct ReportRankLate {
  std::uint32_t job = 0;
  std::string text;
};
// The hash of one block's result on the node.
struct ReportBlockHashed {
  std::uint32_t job = 0;
  BlockHash hash;
};
// The answer to the last PlanPiece: dispatch has accepted the plan.
struct ReportPlanAck {
  std::uint32_t job = 0;
  std::uint32_t version = 0;
  std::uint64_t hash = 0;       // hash of the plan on this node
  std::uint64_t iteration = 0;  // the last iteration of which a block has begun here
};

// Ranks of the node have lost the job and ask which members are left. Has all that the node knows
// of the members; each report replaces the former one. `job` is the node's number of the question.
struct ReportQuorum {
  std::uint32_t job = 0;
  std::string name;
  std::uint32_t uid = 0;
  Membership membership;    // the newest that any of its members was in
  std::uint32_t epoch = 0;  // the last epoch of the job that the node has seen
  QuorumRules rules;
  std::vector<MemberReport> members;  // in growing order, with the lost ones
  bool meets_here = true;             // the receiver is the node's meeting place
  std::uint32_t places_epoch = 0;     // epoch of the places that it knows; 0: it knows none
};
// The places and the membership of a job as the node knows them, for others that ask there.
struct ReportJobPlaces {
  std::string name;
  std::uint32_t uid = 0;
  JobPlaces places;
};
// No member on the node asks any more.
struct LeaveQuorum {
  std::uint32_t job = 0;
};

// ---- from the leader ----
// What the question waits for.
struct AnnounceQuorumWaits {
  std::uint32_t job = 0;
  std::string text;
};
// The decision. The last message about the question.
struct AnnounceQuorum {
  std::uint32_t job = 0;
  Quorum quorum;
};
// The question is refused for those members. An empty list means all members, and then it is the
// last message about the question.
struct AnnounceQuorumRefused {
  std::uint32_t job = 0;
  Code code = Code::kInternal;
  std::string cause;
  std::vector<std::uint32_t> members{};
};
// The places of the job. The question must be asked there, too.
struct AnnounceJobPlaces {
  std::uint32_t job = 0;  // number of the question
  JobPlaces places;
};
struct AnnounceJobForming {
  std::uint32_t job = 0;
  std::string text;
  bool refused = false;  // the text names a refused node or rank, so users have to act
};
struct OpenJob {
  std::uint32_t job = 0;
  std::uint32_t self = 0;  // the node's index in agreement.nodes
  Agreement agreement;
};
struct MeasureJob {
  std::uint32_t job = 0;
};
struct StartJob {
  std::uint32_t job = 0;
  std::vector<transport::CostLine> costs;
  std::uint64_t hash = 0;
};
// The job has failed, or this node is refused. The last message about the job.
struct AnnounceJobFailed {
  std::uint32_t job = 0;
  Code code = Code::kInternal;
  std::string cause;
};
struct AnnounceRankLeft {
  std::uint32_t job = 0;
  std::uint32_t rank = 0;
  std::uint64_t posted = 0;
  std::uint64_t iterations = 0;
  std::string cause;  // "rank 3 (pid 12) on node b left the job"
};
// Every node has forgotten the job, so its links can be closed. The last message about the job.
struct CloseJob {
  std::uint32_t job = 0;
};
// Every node has the plan, which is used from that iteration on. The plan itself was sent before,
// in pieces (PlanPiece, plan_text.h).
struct AnnouncePlanSwitch {
  std::uint32_t job = 0;
  std::uint32_t version = 0;
  std::uint64_t from_iteration = 0;
  double before_s = 0;                  // time of an iteration under the former plan; 0: not known
  std::uint64_t iterations_before = 0;  // iterations in earlier epochs of the job
};

// Sent to every node with ranks, including the one that requested it.
struct AnnounceSteering {
  std::uint32_t job = 0;
  Steering steering;
};
// Sent to every node except the one that reported it.
struct AnnounceRankLate {
  std::uint32_t job = 0;
  std::string text;
};

// Others wait to join the job. They are admitted when its ranks reconnect or shrink.
struct AnnounceMembersWait {
  std::uint32_t job = 0;
};

// ---- either way ----
// The service is about to close the connection.
struct Goodbye {
  std::string cause;  // "the service on node b is stopping"
};

using MessageOfNode =
    std::variant<JoinJob, ReportRankAttached, ReportRankLost, ReportRankLeft, ReportJobFailed,
                 ForgetJob, JobOpened, JobMeasured, JobStarted, ReportLayout, ReportTimesSeen,
                 RequestPolicy, RequestSteering, ReportRankLate, ReportBlockHashed, ReportPlanAck,
                 ReportQuorum, LeaveQuorum, ReportJobPlaces>;
using MessageOfLeader =
    std::variant<AnnounceJobForming, OpenJob, MeasureJob, StartJob, AnnounceJobFailed,
                 AnnounceRankLeft, CloseJob, PlanPiece, AnnouncePlanSwitch, AnnounceSteering,
                 AnnounceRankLate, AnnounceQuorumWaits, AnnounceQuorum, AnnounceQuorumRefused,
                 AnnounceMembersWait, AnnounceJobPlaces>;

template <typename... OfNode, typename... OfLeader>
std::variant<OfNode..., OfLeader..., Goodbye> OfEither(std::variant<OfNode...>,
                                                       std::variant<OfLeader...>);
using PeerMessage =
    decltype(OfEither(std::declval<MessageOfNode>(), std::declval<MessageOfLeader>()));

}  // namespace headrace::service
