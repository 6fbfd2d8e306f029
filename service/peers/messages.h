// What peers is sent.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/error.h"
#include "ipc/base/ids.h"
#include "ipc/base/result.h"
#include "service/actor/request.h"
#include "service/plan/plan.h"
#include "service/session/block_hash.h"
#include "service/session/facts.h"
#include "service/session/layout.h"
#include "service/session/quorum.h"
#include "service/session/session.h"
#include "service/session/steering.h"
#include "transport/network.h"

namespace headrace::service {

// Dispatch has forgotten the job: all its local ranks are gone and nothing is open.
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
// The answer to PlanOffer. `iteration` is the last one of which a block has begun; until PlanSwitch
// comes, none from `iteration` + kSwitchSlack on will be begun (and none at all before the first
// plan), so that any node may name that iteration as the first under the new plan.
inline constexpr std::uint64_t kSwitchSlack = 8;
struct PlanAck {
  JobId job;
  std::uint32_t version = 0;
  std::uint64_t iteration = 0;
};
// How some iterations went on this node, and what the lanes cost meanwhile (the first is the one
// inside the node). Sent after the first few iterations, and then again every now and then.
struct TimesSeen {
  JobId job;
  NodeTimes times;
  std::vector<transport::CostLine> costs;
  std::vector<CodecCost> codecs{};  // of its transfers between nodes
};
// An operation of the job waits longer than it should for a rank of this node; people on its other
// nodes should receive it.
struct RankLate {
  JobId job;
  // "rank 3 (pid 12) on node b has not posted ... for 5.0 s; 7 ranks wait for it"
  std::string text;
};
// What the ranks of this node have got in one block, for the job's leader to compare. May get lost:
// that block is then not compared.
struct BlockHashed {
  JobId job;
  BlockHash hash;
};
// The answer to MakePlan.
struct PlanMade {
  RequestToken token = 0;
  // Null: the plan in force is as good, within the margin that was asked for.
  Result<std::shared_ptr<const plan::Plan>> plan;
};
// Whether a rank of a job with a rendezvous may attach, as far as the other nodes go.
struct CheckRank {
  RequestToken token = 0;
  std::string job;
  std::uint32_t rank = 0;
};
// A rank has its slot.
struct RankAttached {
  SessionIdentity identity;
};
// Its lease has ended. Sent before dispatch is sent its end, so that what dispatch reports of it
// comes later.
struct RankEnded {
  SessionIdentity identity;
  bool orderly = false;
  std::string cause;
  bool exited = false;  // its process
};
// The session's gradients are tensors first, first + 1, ... Peers compares the layout with those of
// the job's other ranks and sends SetLayout to dispatch; one that differs ends the job.
struct HandInLayout {
  RequestToken token = 0;
  SessionIdentity identity;
  TensorId first;
  std::shared_ptr<const Layout> layout;
  std::optional<plan::Policy> policy;
  std::uint64_t residuals = 0;  // as in SetLayout
};
// A person wants another policy for a job, or steers it; the value was checked.
struct ChangeSetting {
  RequestToken token = 0;
  std::string job;
  std::uint32_t uid = 0;
  std::variant<plan::Policy, Steering> setting;
};
// Whether the certificate's files have changed is looked at now.
struct CheckCertificate {};
// Answered by PeersListed.
struct ListPeers {
  RequestToken token = 0;
};
// Reaches the service at that address as a job's first rank would, and leaves it again. Answered by
// PeerTried.
struct TryPeer {
  RequestToken token = 0;
  std::string address;
};
// The service is stopping: no other service is let in any more.
struct DrainPeers {};
// The connections say goodbye. Answered soon, also where nobody receives it.
struct StopPeers {
  RequestToken token = 0;
};
// What does the job wait for before it can run? Answered by Answered: ok when for nothing. While it
// waits, the answer comes as soon as a node or rank of the job was refused, and at `until_ns` at
// the latest.
struct AskForming {
  RequestToken token = 0;
  JobId job;
  TimeNs until_ns = 0;
};
// A rank of a job of several nodes got no session, for a reason that waiting does not mend.
struct RankRefused {
  std::string job;
  std::string leader;  // the job's rendezvous, as in SessionIdentity
  std::uint32_t world_size = 1;
  std::string architecture;
  std::uint32_t uid = 0;
  std::uint32_t rank = 0;
  std::int32_t pid = 0;
  Code code = Code::kOk;
  std::string cause;
};
// A member of a job that was lost asks who is left of it. Answered by QuorumAnswered: with the
// decision, an error, or, at `until_ns`, with what is still waited for.
struct AskQuorum {
  RequestToken token = 0;
  std::uint64_t client = 0;  // of the connection, used once
  std::string job;
  std::uint32_t uid = 0;
  std::int32_t pid = 0;
  std::string leader;  // the job's rendezvous, as in SessionIdentity
  MemberRole role = MemberRole::kMember;
  std::uint32_t member = 0;  // of a member, with the next
  Membership membership;     // checked, and has the member
  std::uint32_t epoch = 0;
  QuorumRules rules;
  TimeNs until_ns = 0;
};
// The connection of one who asked is gone.
struct QuorumClientLost {
  std::uint64_t client = 0;
  bool exited = false;  // with its process
};
using PeersMessage =
    std::variant<JobFailed, RankLeft, JobEnded, GroupOpened, GroupMeasured, PlanAck, TimesSeen,
                 PlanMade, RankLate, BlockHashed, SteerJob, CheckRank, RankRefused, RankAttached,
                 RankEnded, HandInLayout, AskForming, ChangeSetting, ListPeers, TryPeer,
                 CheckCertificate, DrainPeers, StopPeers, AskQuorum, QuorumClientLost, Ping>;

}  // namespace headrace::service
