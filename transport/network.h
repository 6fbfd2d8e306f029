// What a transport between nodes offers beyond the contract in transport.h: groups of nodes.
//
// A group is the set of nodes of one job's transfers. It has links of its own, so that a failing
// link of one job affects no other. Members are numbered alike on every node. Between nodes a
// transfer is one of all_reduce, reduce, broadcast and barrier, or half of an all_reduce;
// `members_count` is the number of the group's nodes that have data, `members[self]` this node's
// memory, the other pointers null.
//
// Every node posts the same transfers; `position` is what matches them: equal on every node, used
// once in the life of a group, and growing in the order of the posts. Positions with
// kPlannedPosition set are an order of their own, and so are, among the others, those of
// broadcasts: nodes may interleave these orders in any way. (NCCL has one order for both: there
// nodes post broadcasts in the order of all positions.) A node may be ahead of another: messages
// that arrive early wait for their transfer. All calls come from the lane's thread.
//
// In a group without servers an all_reduce may be split: a reduce_scatter leaves every node with
// the result of its share of the elements and unspecified values in the others, and a later
// all_gather of equal type and count over the same memory copies every share to all nodes. Both may
// have runs and any count. The transport decides which elements are whose share
// (exchange/partition.h), in the same way for both.
//
// A transfer with a codec crosses encoded, in fewer bytes: each node's contribution plus its
// residual, and, where a node or a server sums for the others, the sum likewise. Every node writes
// the decoded values, its own included, so all get the same bits. In a group of one node nothing is
// encoded.
//
// A server keeps what it leaves out of sums by where their elements lie in the memory of residuals.
// So in a group with servers the runs of a transfer with a residual are the same on every node,
// kServedRunsMax at most, in every transfer of the same gradients.
//
// A send or receive (kSend, kReceive) concerns two nodes: `root` is the other one. It needs no
// order and is identified by the sender's node and the position, which that node uses once for all
// of its sends in the life of the group. The receive is posted, and accepted, before the other node
// posts the send: messages for no open receive are dropped. Cancel ends it alone: an unknown part
// of the bytes under way has been written, and later messages are dropped. With `meets` both may be
// posted in any order: the receive is announced to the other node, and before that no more of the
// send leaves than a first piece, of few sends at a time. Positions of a node's sends that meet
// then grow in the order of their posts, and so do those of its receives that meet.
//
// In addition to transfers a node sends notices to other nodes of its group: a few bytes, each
// delivered once, in the order in which they were sent to that node, and in no order with
// transfers. Notices that the other node does not take wait here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ipc/base/error.h"
#include "ipc/base/result.h"
#include "transport/transport.h"

namespace headrace::transport {

inline constexpr std::uint32_t kNodesMax = 64;  // of one group, servers included
inline constexpr std::size_t kServedRunsMax = 255;
inline constexpr std::uint64_t kPlannedPosition = std::uint64_t{1} << 63;

// Seconds and seconds a byte that a transfer of n bytes costs on the wire: T(n) = startup + n *
// rate.
struct CostLine {
  double startup_s = 0;
  double s_per_byte = 0;

  double Seconds(double bytes) const { return startup_s + s_per_byte * bytes; }
  friend bool operator==(const CostLine&, const CostLine&) = default;
};

// How a group's transfers find their way; part of what every node must agree on.
enum class Algorithm : std::uint8_t {
  kAuto = 0,               // by size and cost line
  kDirectExchange = 1,     // everybody sends everything to everybody: one step
  kRecursiveDoubling = 2,  // pairs at growing distance: log2(n) steps of the whole
  kDirectScatter = 3,      // each node sums its share, straight from all and to all
  kRing = 4,               // shares go round, summed on the way
};

constexpr bool IsAlgorithm(std::uint8_t number) {
  return number <= static_cast<std::uint8_t>(Algorithm::kRing);
}

struct GroupMember {
  std::string name;     // of the node, for errors
  std::string address;  // what address() gave there; opaque bytes
};

struct GroupOptions {
  std::uint32_t group = 0;  // this node's number for it; not 0, unique among its open groups
  std::uint64_t key = 0;    // agreed over the control connection; messages without it are dropped
  std::uint32_t epoch = 0;
  std::uint32_t plan_version = 0;
  std::uint32_t self = 0;  // this node's place in `members`
  std::vector<GroupMember> members;
  // The last `servers_count` members are servers: they have no data, and they own the shares of
  // each sum in the place of those that have. 0: the nodes sum among themselves.
  std::uint32_t servers_count = 0;
  Algorithm algorithm = Algorithm::kAuto;
};

// What a group gets of what the wire can send: first come the groups of the highest priority that
// have something to send, and among them each sends by its weight.
struct Share {
  std::uint32_t weight = 1;  // at least 1
  std::uint32_t priority = 0;
  // Its sends, then its broadcasts, go before the rest of what it has for a node, or all in turn.
  bool by_urgency = true;

  friend bool operator==(const Share&, const Share&) = default;
};

// What went over the links, and what was refused.
struct NetworkCounters {
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t messages_sent = 0;
  std::uint64_t messages_received = 0;
  // Messages of an unknown key, an old epoch or another plan, malformed ones and repeated ones.
  std::uint64_t messages_dropped = 0;
};

inline constexpr std::size_t kNoticeBytesMax = std::size_t{72} << 10;

// What came of a group beside its transfers: bytes from another member, or, once and without a
// cause of this node's own, that its links have failed and nothing will come any more.
struct Notice {
  std::uint32_t group = 0;
  std::uint32_t member = 0;
  std::vector<std::byte> bytes{};
  std::optional<Error> failure{};
};

// Where a lane has several rails (rails/rail_wire.h): the one that it leaves, with everything that
// the other node has not got, and the one in use from now on.
struct LinkMove {
  std::string from;  // as WireNames has them
  std::string to;
  std::string cause;           // empty: `to` is preferred, and works again
  std::uint64_t messages = 0;  // that are sent again
  std::uint64_t bytes = 0;
};
struct MovedLink {
  std::uint32_t group = 0;
  std::uint32_t member = 0;
  LinkMove move{};
};

// Host memory of a group's own that is to be pinned for GPUs, so that these encode their memory for
// the group's transfers, which wait meanwhile; or to be unpinned, so that it may be freed.
struct StagingRequest {
  std::uint32_t group = 0;
  std::span<std::byte> memory{};  // whole pages
  bool pin = true;
};

class NetworkTransport : public Transport {
 public:
  // How other nodes reach this lane; opaque bytes for GroupMember::address.
  virtual const std::string& address() const = 0;
  // The wires in use, as their library names them: "tcp/eth0".
  virtual std::string WireNames() const = 0;

  // Connects to the members. The group can be used at once; a member that cannot be reached fails
  // the transfers. Errors: kUnavailable (an address makes no sense here), kExhausted (memory).
  virtual Status OpenGroup(const GroupOptions& options) = 0;
  // The cost line by which kAuto chooses, in bytes sent by a node; equal on every node, set before
  // the first transfer that depends on it.
  virtual void SetCost(std::uint32_t group, const CostLine& cost) = 0;
  // The group's share from now on; unknown groups are ignored. Each node may have another.
  virtual void SetShare(std::uint32_t group, const Share& share) = 0;
  // Closes the links. Open transfers end with kCancelled (`cause` in their completions) once their
  // memory is out of the links' reach; later ones at once.
  virtual void CloseGroup(std::uint32_t group, const std::string& cause) = 0;

  // At least one and at most kNoticeBytesMax bytes. Never refuses; whoever sends bounds what waits.
  // Dropped where the group is not open or has failed.
  virtual void SendNotice(std::uint32_t group, std::uint32_t member,
                          std::vector<std::byte> bytes) = 0;
  // Appends what has come. What is not taken for long holds up its sender, not the links.
  virtual void DrainNotices(std::vector<Notice>& notices) = 0;

  // Appends what has moved since the last call.
  virtual void DrainMoves([[maybe_unused]] std::vector<MovedLink>& moves) {}

  // Appends what is to be pinned or unpinned. Each is answered by SetStaging: where GPUs find it,
  // null once it is unpinned, or why it cannot be pinned, which fails the group. The group stays
  // until then.
  virtual void DrainStaging([[maybe_unused]] std::vector<StagingRequest>& requests) {}
  virtual void SetStaging([[maybe_unused]] std::uint32_t group,
                          [[maybe_unused]] const Result<std::byte*>& on_gpus) {}

  virtual NetworkCounters counters() const = 0;
};

}  // namespace headrace::transport
