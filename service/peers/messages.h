// The messages to the peers actor.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ipc/base/architecture.h"
#include "ipc/base/clock.h"
#include "ipc/base/error.h"
#include "ipc/base/ids.h"
#include "ipc/base/result.h"
#include "service/actor/request.h"
#include "service/plan/plan.h"
#include "service/session/block_hash.h"
#include "service/session/facts.h"
#include "service/session/job_place.h"
#include "service/session/layout.h"
#include "service/session/quorum.h"
#include "service/session/session.h"
#include "service/session/steering.h"
#include "transport/network.h"

namespace headrace::service {

// Dispatch has forgotten the job: all of its local ranks are gone and no operation is open.
struct JobEnded {
  JobId job;
};
struct GroupOpened {
  std::uint8_t lane = 0;
  std::uint32_t group = 0;
  Status status;
};
struct GroupMeasured {
  std::uint8_t lane = 0;
  std::uint32_t group = 0;
  Result<transport::CostLine> cost;
};
// A group of which this node is a server has failed, by something that it found itself: no dispatch
// here knows the job, and other nodes only see that the links are gone.
struct GroupFailed {
  std::uint32_t group = 0;
  Code code = Code::kOk;
  std::string cause;
};
// The answer to PlanOffer. `iteration` is the last one of which a block has begun. Until PlanSwitch
// arrives, no iteration from `iteration` + kSwitchSlack on is begun, and none at all before the
// first plan, so that the new plan can start with that iteration on any node.
inline constexpr std::uint64_t kSwitchSlack = 8;
struct PlanAck {
  JobId job;
  std::uint32_t version = 0;
  std::uint64_t iteration = 0;
};
// Times of iterations on this node, and the costs of the lanes during them; the first lane is the
// one inside the node. Sent after the first few iterations and then periodically.
struct TimesSeen {
  JobId job;
  NodeTimes times;
  std::vector<transport::CostLine> costs;
  std::vector<CodecCost> codecs{};  // of its transfers between nodes
  bool rails_changed = false;       // as in NodeSeen
};
// An operation of the job has waited too long for a rank of this node. Reported to the users of the
// job's other nodes.
struct RankLate {
  JobId job;
  // "rank 3 (pid 12) on node b has not posted ... for 5.0 s; 7 ranks wait for it"
  std::string text;
};
// The hash of one block's result on this node, which the job's leader compares. If it is lost, that
// block is not compared.
struct BlockHashed {
  JobId job;
  BlockHash hash;
};
// The answer to MakePlan.
struct PlanMade {
  RequestToken token = 0;
  // Null: no plan is better than the one in force by the requested margin.
  Result<std::shared_ptr<const plan::Plan>> plan;
};
// Asks whether a rank of a job with a rendezvous may attach, as far as other nodes are concerned.
struct CheckRank {
  RequestToken token = 0;
  std::string job;
  std::uint32_t uid = 0;
  std::uint32_t rank = 0;
};
// A rank has its slot.
struct RankAttached {
  SessionIdentity identity;
};
// The rank's lease has ended. Sent before dispatch is told, so that reports of dispatch about it
// arrive later.
struct RankEnded {
  SessionIdentity identity;
  bool orderly = false;
  std::string cause;
  bool exited = false;  // whether its process has ended
};
// The session's gradients are the tensors first, first + 1, ... Peers compares the layout with
// those of the job's other ranks and sends SetLayout to dispatch. A layout that differs fails the
// job.
struct HandInLayout {
  RequestToken token = 0;
  SessionIdentity identity;
  TensorId first;
  std::shared_ptr<const Layout> layout;
  std::optional<plan::Policy> policy;
  ResidualsPlace residuals;
};
// A user's request for another policy or another setting change of a job; its value was checked.
struct ChangeSetting {
  RequestToken token = 0;
  std::string job;
  std::optional<std::uint32_t> owner{};  // of the job; none: there is one that `uid` may change
  std::uint32_t uid = 0;                 // who asks
  std::variant<plan::Policy, Steering> setting;
};
// Checks now whether the certificate's files have changed.
struct CheckCertificate {};
// Answered by PeersListed.
struct ListPeers {
  RequestToken token = 0;
};
// Connects to the service at that address as for a job, and disconnects again. Answered by
// PeerTried.
struct TryPeer {
  RequestToken token = 0;
  std::string address;
};
// The service is stopping: no further services are accepted.
struct DrainPeers {};
// Sends Goodbye on all connections. Answered soon, even if no peer receives it.
struct StopPeers {
  RequestToken token = 0;
};
// Asks what the job waits for before it can run. Answered by Answered: ok if it waits for nothing.
// While it waits, the answer comes when a node or rank of the job is refused, and at `until_ns` at
// the latest.
struct AskForming {
  RequestToken token = 0;
  JobId job;
  TimeNs until_ns = 0;
};
// A rank of a job of several nodes was refused a session for a reason that waiting cannot fix.
struct RankRefused {
  std::string job;
  std::string leader;  // the job's rendezvous, as in SessionIdentity
  std::uint32_t world_size = 1;
  std::optional<Architecture> architecture{};
  std::uint32_t uid = 0;
  std::uint32_t rank = 0;
  std::int32_t pid = 0;
  Code code = Code::kOk;
  std::string cause;
};
// A member of a lost job asks which members are left. Answered by QuorumAnswered: with the
// decision, an error or, at `until_ns`, with what the decision waits for.
struct AskQuorum {
  RequestToken token = 0;
  std::uint64_t client = 0;  // number of the connection, never reused
  std::string job;
  std::uint32_t uid = 0;
  std::int32_t pid = 0;
  std::string leader;  // the job's rendezvous, as in SessionIdentity
  MemberRole role = MemberRole::kMember;
  std::uint32_t member = 0;  // of a member; with the next field
  Membership membership;     // checked, and contains the member
  std::uint32_t epoch = 0;
  // The services of its job in that epoch, in their order, as its service knew them; a service that
  // has begun again since does not. None: the client was not told.
  std::vector<JobPlace> places{};
  QuorumRules rules;
  TimeNs until_ns = 0;
};
// The connection of a member that asked is closed.
struct QuorumClientLost {
  std::uint64_t client = 0;
  bool exited = false;  // whether its process has ended
};
using PeersMessage =
    std::variant<JobFailed, RankLeft, JobEnded, GroupOpened, GroupMeasured, GroupFailed, PlanAck,
                 TimesSeen, PlanMade, RankLate, BlockHashed, SteerJob, CheckRank, RankRefused,
                 RankAttached, RankEnded, HandInLayout, AskForming, ChangeSetting, ListPeers,
                 TryPeer, CheckCertificate, DrainPeers, StopPeers, AskQuorum, QuorumClientLost,
                 Ping>;

}  // namespace headrace::service
