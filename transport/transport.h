// The contract of every transport: how a lane hands over a transfer and learns of its end.
//
// A transport knows no job, tensor or plan. It gets a Transfer (memory of the members, in rank
// order, and what to do with it), works on it in bounded pieces, and reports one Completion per
// accepted transfer. All calls come from one thread, the lane's; a transport may own further
// threads that share the work of one transfer.
//
// Promises every transport keeps (tests/contract runs over all of them):
//  1. Post answers kBusy instead of waiting; a busy transport has taken nothing.
//  2. Each accepted transfer ends in exactly one completion, also after Cancel.
//  3. The memory of a transfer is untouched after its completion is reported, and before Post.
//  4. The order of a reduction is fixed by member index: all members get the same bits, and a
//     second run over the same inputs gives the same bits.
//  5. DoWork is bounded (about one piece) and never sleeps.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/codecs.h"
#include "ipc/base/collective.h"
#include "ipc/base/error.h"

namespace headrace::transport {

inline constexpr std::size_t kMembersMax = 64;
inline constexpr std::size_t kRunsMax = 1024;  // of one transfer

// What a transport can do, as plain values.
struct Capabilities {
  std::string_view name;            // as in tables and config: "shm"
  std::uint32_t collectives = 0;    // bit (1 << Collective)
  std::uint32_t transfers_max = 0;  // accepted and not completed at one time
  std::size_t piece_size = 0;       // bytes of one member's memory in one piece
  std::uint32_t threads = 1;        // that share one transfer, the lane's own included
  bool device_memory = false;       // takes GPUs' memory, and no other
  bool digests = false;             // takes transfers that only look: Transfer::digest
  bool measures_flow = false;       // FlowedNs tells moving from waiting for other members
  // Between nodes: codecs in which it takes memory of GPUs, too, bit (1 << Codec::Kind).
  std::uint32_t device_codecs = 0;

  bool Supports(Collective kind) const {
    return (collectives >> static_cast<unsigned>(kind) & 1U) != 0;
  }
};

// A piece of every member's memory: `count` elements from `offset` bytes behind its pointer. The
// offset is a multiple of the element's size.
struct Run {
  std::uint64_t offset = 0;
  std::uint64_t count = 0;

  friend bool operator==(const Run&, const Run&) = default;
};

inline constexpr std::int8_t kHost = -1;
constexpr std::array<std::int8_t, kMembersMax> HostMemory() {
  std::array<std::int8_t, kMembersMax> devices{};
  devices.fill(kHost);
  return devices;
}

// One stage of one block, ready to move. `count` is in elements of `dtype` and is the length of
// every member's memory; what is read and written, by kind:
//   all_reduce      every member's [0, count) is reduced, the result written to every member.
//   reduce_scatter  count is a multiple of the member count n; with part = count / n, the reduction
//                   of [i*part, (i+1)*part) is written to that range of member i, or, where
//                   outputs[i] is not null, to [0, part) of that memory, which is disjoint from all
//                   members; what is not written keeps its value.
//   all_gather      range i of member i is copied to range i of every other member (same parts).
//   broadcast       member `root`'s [0, count) is copied to every other member.
//   reduce          every member's [0, count) is reduced, the result written to `output`, which is
//                   member `root`'s memory or disjoint from all members; the others keep theirs.
//   barrier         moves nothing; count is 0.
// kAverage divides the sum by `divisor`, which is the member count unless members stand for several
// ranks each (integers truncate toward zero). float16 and bfloat16 are accumulated in float32 and
// rounded once. Integers wrap modulo 2^bits, averages once divided. min and max of a NaN are NaN.
//
// Memory may consist of several runs: then element k of a member (and of `output`) is element
// `skip` + k of the runs, one behind the other, instead of element k behind the pointer. Only
// all_reduce, reduce and broadcast may have runs. Between nodes the runs are each node's own
// affair: another may have others, in other places.
//
// Inside a node all members' memory is mapped here and `group` is 0. Between nodes (network.h) the
// members are the nodes of a group, and only this node's memory is here.
//
// Memory may be a GPU's, at an address that every GPU of the transport reaches; `devices` says
// whose of each member. Only transports with `device_memory` take such transfers. Members on the
// host, and an `output` that is not member `root`'s memory, are then memory that all GPUs of the
// transfer reach, at the address it has for them: the host's, pinned for them, or one GPU's that
// nobody's runs are in. It is one piece also where there are runs, which
// say only where the GPUs' memory is: its element k is element k behind the pointer, whatever
// `skip` is. At least one member is a GPU's; where outputs[i] is not null, all are, and that memory
// is on the GPU of member i.
//
// With `digest` nothing is moved, whatever the kind, and nothing is written: the completion says
// what the members hold. Only transports with `digests` take such transfers.
struct Transfer {
  std::uint64_t token = 0;  // comes back in the completion; unique among open transfers
  Collective kind = Collective::kBarrier;
  DType dtype = DType::kUInt8;
  Reduction reduction = Reduction::kSum;
  std::uint32_t root = 0;
  std::uint64_t count = 0;
  std::uint32_t divisor = 0;    // of kAverage; 0: members_count
  std::byte* output = nullptr;  // of reduce
  // Whether that is other memory on the GPU of member `root`.
  bool output_on_root_gpu = false;
  std::uint32_t group = 0;     // between nodes: which links; 0: all memory is mapped here
  std::uint64_t position = 0;  // between nodes: the transfer's name, equal on every node
  // Between nodes, where one of several rails moves a share of a block: the elements of the block,
  // and of the operation that was cut into blocks. Equal shares of unequal operations differ here.
  std::uint64_t block_count = 0;
  std::uint64_t operation_count = 0;
  // Between nodes, where a member stands for several ranks: which of the root's it is. Nodes that
  // say different ones do not mean the same transfer.
  std::uint32_t root_rank = 0;
  std::uint32_t members_count = 0;
  std::array<std::byte*, kMembersMax> members{};  // aligned to the element, not to the vector
  std::array<std::int8_t, kMembersMax> devices = HostMemory();  // by member; kHost: no GPU's
  // By member: where a reduce_scatter inside a node writes its part; null: to where that is.
  std::array<std::byte*, kMembersMax> outputs{};
  std::span<const Run> runs{};  // empty: memory is one piece; else outlives the completion
  std::uint64_t skip = 0;       // elements of the runs before this transfer's first
  bool digest = false;
  // Between nodes: how the bytes cross (codec/codec.h), equal on every node; sums and averages of
  // float32 by all_reduce have one. `residual` lies as member `self`'s
  // memory does, runs included, or by `residual_runs`, of which it leaves out the first
  // `residual_skip` elements; null: nowhere. An encoding keeps what it leaves out there; without
  // one, or with one that loses nothing, all_reduce and reduce_scatter add it first, and leave
  // zeros.
  Codec codec = Codec::kNone;
  // Between nodes, of an all_reduce that crosses as it is: the codec that was asked for all the
  // same. Nodes that were asked for different ones do not mean the same transfer.
  Codec asked_codec = Codec::kNone;
  std::byte* residual = nullptr;
  // Where GPUs find the residual, where the memory of member `self` is a GPU's: it is pinned then.
  // Such a transfer has no runs, and a codec of Capabilities::device_codecs.
  std::byte* residual_on_gpus = nullptr;
  std::span<const Run> residual_runs{};  // not empty: the memory of members has no runs
  std::uint64_t residual_skip = 0;
  // Over servers: one more than the place of the first element among the float32 of the memory of
  // residuals, equal on every node; 0: it has none, and no residual. A place is always summed by
  // the same server, which keeps what it leaves out there.
  std::uint64_t place = 0;
  // For powersgd, which takes the elements as a matrix of so many rows, in one piece (HasFactors):
  // memory for its factors, FactorMemoryCount floats (ipc/base/matrix.h), of which it keeps what
  // helps the next sum of the same matrix. Zeros to begin with.
  std::uint64_t rows = 0;
  std::byte* factors = nullptr;
  // Where the memory of member `self` is a GPU's: where GPUs find the factors, which are pinned,
  // and as much memory of that GPU. The elements get their residual added before there is a result.
  std::byte* factors_on_gpus = nullptr;
  std::byte* factors_of_gpu = nullptr;
  // Not null: the right factor that helps the next sum, one column of the matrix's rank after the
  // other, is read here at the beginning and written here at the end.
  std::byte* right_factor = nullptr;
  // What such a codec draws by chance follows from it: equal on every node and in every run, and
  // another one for each transfer and each rail.
  std::uint64_t seed = 0;
  // In a send and receive between nodes the receive tells the sender's node that it is there, and
  // the send waits for that with all but its first piece. Else whoever posts the send knows.
  bool meets = false;

  std::span<std::byte* const> Members() const { return {members.data(), members_count}; }
  std::size_t Bytes() const { return static_cast<std::size_t>(count) * SizeOf(dtype); }
};

// What a node's encoding of a transfer came to.
struct CodecUse {
  TimeNs encode_ns = 0;
  TimeNs decode_ns = 0;
  std::uint64_t plain_bytes = 0;  // that its messages would have taken as they are
  std::uint64_t sent_bytes = 0;   // that they have taken
  // Over a few elements of each message: squares of the sums with what had been left out of those
  // before, and of what was left out of them.
  double sum_squares = 0;
  double residual_squares = 0;
  // Blocks of the codec with a value that is not finite, which leaves nothing in its residual.
  std::uint64_t not_finite_blocks = 0;
};

struct Completion {
  std::uint64_t token = 0;
  Code code = Code::kOk;  // kOk or kCancelled, or what the link reported
  std::string cause{};    // when a link failed: which one and why, for people
  TimeNs begin_ns = 0;    // when the first piece started
  TimeNs end_ns = 0;      // when the last piece ended
  // For a transfer with `digest`: the digest of member 0's elements, which depends on their bytes
  // and their order alone, and the members that hold something else, bit i for member i.
  std::uint64_t digest = 0;
  std::uint64_t differing = 0;
  CodecUse codec{};  // between nodes; zeros where nothing is encoded
};

enum class PostResult : std::uint8_t { kAccepted, kBusy };

// How a transport's own threads say "DoWork has something to do now". Callable from any thread.
class Waker {
 public:
  virtual ~Waker() = default;
  virtual void Wake() = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual const Capabilities& capabilities() const = 0;

  // Takes the transfer, or answers kBusy and takes nothing. The transfer must be one the
  // capabilities allow, with all pointers valid until its completion.
  [[nodiscard]] virtual PostResult Post(const Transfer& transfer, TimeNs now) = 0;

  // Ends an open transfer early, at the next piece border, with kCancelled; one that ended in the
  // meantime keeps its own code. Unknown tokens are ignored.
  virtual void Cancel(std::uint64_t token) = 0;

  // The members that an open transfer waits for something from, bit i for member i; 0 when it waits
  // for nobody, for work of its own, or is not open.
  virtual std::uint64_t Missing([[maybe_unused]] std::uint64_t token) const { return 0; }

  // For how long something of its transfers has moved or was summed, as of the last DoWork, without
  // the time in which all of them waited for what other members had not sent or taken. Only where
  // the capabilities say `measures_flow`.
  virtual TimeNs FlowedNs() const { return 0; }

  // Moves about one piece and appends ended transfers to `completions`. Returns true when calling
  // again at once makes sense; after false the Waker calls, or NextLook's time has come.
  virtual bool DoWork(TimeNs now, std::vector<Completion>& completions) = 0;

  // Called before the lane's thread sleeps: false when there is work already. After true, the
  // Waker, event_fd() or NextLook() says when there is some.
  virtual bool PrepareToSleep() { return true; }
  // When DoWork must be called though nothing woke the thread, because what a transfer waits for
  // wakes nobody; kNever while that is not so.
  virtual TimeNs NextLook() const { return kNever; }
  // Readable when DoWork has something to do; -1 when only the Waker signals it.
  virtual int event_fd() const { return -1; }
};

}  // namespace headrace::transport
