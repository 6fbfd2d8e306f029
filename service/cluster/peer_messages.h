// What the service of a node and the service that leads a job say to each other. Plain values: the
// network carries them, a simulation hands them over.
//
// `job` is the number by which the two ends of one connection know a job: the node's own JobId, or,
// for a server, a number that the leader chose. Numbers are never used again on a connection, so
// a message about a job that one side has forgotten is recognised and ignored.
//
//   node -> leader: MessageOfNode. Report... is what happened there, Request... what people want.
//   leader -> node: MessageOfLeader. Announce... is what holds for all nodes of the job, or what
//     another node reported.
//   either way: Goodbye
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

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

// Numbers of jobs on a server's connection; below are a node's own.
inline constexpr std::uint32_t kServerNumbers = 0x80000000U;

inline constexpr std::string_view kAllReduceName = "all-reduce";
inline constexpr std::string_view kServersName = "parameter-server";

// A service as it introduces itself at the beginning of a connection.
struct NodeFacts {
  std::uint32_t protocol_version = 0;
  std::string program;                 // "headraced 0.1.0"
  std::string name;                    // of the node
  std::uint64_t instance = 0;          // drawn by each service at its start
  bool server = false;                 // has no ranks, owns shares of sums
  std::vector<std::string> addresses;  // of its lanes between nodes; opaque bytes
  std::uint32_t gpu_lanes = 0;         // of which so many carry GPUs' memory from where it is
  std::string control{};               // "host:port" where it listens; the host may be "*"
};

// ---- from a node ----
struct JoinJob {
  std::uint32_t job = 0;
  std::string name;
  std::uint32_t world_size = 1;
  std::uint32_t uid = 0;
  std::string architecture;  // kAllReduceName, kServersName or empty: as the leader has it
};
struct ReportRankAttached {
  std::uint32_t job = 0;
  std::uint32_t rank = 0;
  std::int32_t pid = 0;
  std::uint32_t after_epoch = 0;   // of the job, in which the rank was before; 0: it begins
  std::uint64_t members_hash = 0;  // SessionIdentity::members_hash
};
struct ReportRankLost {
  std::uint32_t job = 0;
  std::uint32_t rank = 0;
  std::string cause;    // "exited or was killed"
  bool exited = false;  // its process, which cannot come back as that rank
};
// The rank has left in an orderly way after its first `posted` operations, and after it posted
// every gradient of its first `iterations` iterations.
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
// All ranks of the node are gone and nothing of theirs is open.
struct ForgetJob {
  std::uint32_t job = 0;
};
// The answers to OpenJob, MeasureJob and StartJob; code kOk: done.
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
  std::uint64_t hash = 0;  // of what this node uses
};
// All ranks of the node have handed in this layout.
struct ReportLayout {
  std::uint32_t job = 0;
  std::shared_ptr<const Layout> layout;  // shared with dispatch, which only reads it; never null
  std::optional<plan::Policy> policy;    // nothing: as the leader has it
};
// How iterations went on the node, and what its lanes cost meanwhile.
struct ReportTimesSeen {
  std::uint32_t job = 0;
  NodeSeen seen;
};
// Somebody on the node wants plans by that policy from now on.
struct RequestPolicy {
  std::uint32_t job = 0;
  plan::Policy policy = plan::Policy::kExact;
};
// A person on the node steers the job; that person may, as the node has checked.
struct RequestSteering {
  std::uint32_t job = 0;
  Steering steering;
};
// Everybody waits for a rank of this node: RankLate::text.
struct ReportRankLate {
  std::uint32_t job = 0;
  std::string text;
};
// What the node's ranks have got in one block.
struct ReportBlockHashed {
  std::uint32_t job = 0;
  BlockHash hash;
};
// The answer to the last PlanPiece: dispatch has the plan.
struct ReportPlanAck {
  std::uint32_t job = 0;
  std::uint32_t version = 0;
  std::uint64_t hash = 0;       // of what this node uses
  std::uint64_t iteration = 0;  // the last of which a block has begun here
};

// Ranks of that node have lost the job, and ask who is left of it; all that the node knows of the
// job's members, each time anew. `job` is the node's number of the question.
struct ReportQuorum {
  std::uint32_t job = 0;
  std::string name;
  std::uint32_t uid = 0;
  Membership membership;    // the newest that any of them was in
  std::uint32_t epoch = 0;  // the last of the job that the node has seen
  QuorumRules rules;
  std::vector<MemberReport> members;  // growing; with those that it has lost
  bool meets_here = true;             // the service that is told is where the node meets the others
  std::uint32_t places_epoch = 0;     // of the places that it knows the job by; 0: it knows none
};
// What the node knows of where a job lives, and of who is left of it: for those that ask there.
struct ReportJobPlaces {
  std::string name;
  std::uint32_t uid = 0;
  JobPlaces places;
};
// Nobody on the node asks any more.
struct LeaveQuorum {
  std::uint32_t job = 0;
};

// ---- from the leader ----
// What the question waits for.
struct AnnounceQuorumWaits {
  std::uint32_t job = 0;
  std::string text;
};
// The decision. The last that is said of the question.
struct AnnounceQuorum {
  std::uint32_t job = 0;
  Quorum quorum;
};
// There is none for those members; for all if none is named, and then it is the last that is said
// of the question.
struct AnnounceQuorumRefused {
  std::uint32_t job = 0;
  Code code = Code::kInternal;
  std::string cause;
  std::vector<std::uint32_t> members{};
};
// Where the job lives: the question is to be asked there, too.
struct AnnounceJobPlaces {
  std::uint32_t job = 0;  // of the question
  JobPlaces places;
};
struct AnnounceJobForming {
  std::uint32_t job = 0;
  std::string text;
  bool refused = false;  // it names a node or rank that was refused: its users have to do something
};
struct OpenJob {
  std::uint32_t job = 0;
  std::uint32_t self = 0;  // the node's place in agreement.nodes
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
// The job has failed, or this node may not take part in it. The last that is said of it.
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
// Every node has forgotten the job: its links may go. The last that is said of it.
struct CloseJob {
  std::uint32_t job = 0;
};
// Every node holds the plan: it moves that iteration and later ones. The plan itself comes before,
// in pieces (PlanPiece, plan_text.h).
struct AnnouncePlanSwitch {
  std::uint32_t job = 0;
  std::uint32_t version = 0;
  std::uint64_t from_iteration = 0;
  double before_s = 0;  // an iteration until now; 0: not known
};

// To every node with ranks, the one that asked for it too.
struct AnnounceSteering {
  std::uint32_t job = 0;
  Steering steering;
};
// To every node but the one that reported it.
struct AnnounceRankLate {
  std::uint32_t job = 0;
  std::string text;
};

// Others wait to join it: they come in when its ranks meet again.
struct AnnounceMembersWait {
  std::uint32_t job = 0;
};

// ---- either way ----
// The service is about to end the connection on purpose.
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
