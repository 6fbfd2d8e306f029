// What dispatch knows of one job: its attached ranks and the operations that are open.
//
// An operation is the same number on every rank: the ranks of a job post the same operations in the
// same order (gradients of a layout are not counted among them: gradients.h). It opens with the
// first post, is ready when every rank has posted it, and ends on each rank exactly once. One that
// ends early (error, timeout) stays as a tombstone until every rank has posted it, so that
// latecomers learn the same cause.
//
// A send and a receive concern two ranks only and are matched separately: pairs.h.
//
// A job may have ranks on other nodes. Then "every rank" means those of this node, once it is known
// which they are (nodes()), and the early end of an operation ends the job on all nodes, because
// the others cannot go on without it.
//
// Plain data and rules; blocks/ queues its work items and writes its completions.
#pragma once

#include <array>
#include <boost/circular_buffer.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/error.h"
#include "ipc/base/ids.h"
#include "ipc/board_layout.h"
#include "service/dispatch/job/block.h"
#include "service/dispatch/job/codec_samples.h"
#include "service/dispatch/job/gradients.h"
#include "service/dispatch/job/iteration_times.h"
#include "service/dispatch/job/lane_samples.h"
#include "service/dispatch/job/left_out.h"
#include "service/dispatch/job/matrix_factors.h"
#include "service/dispatch/job/open_ranges.h"
#include "service/dispatch/job/operation.h"
#include "service/dispatch/job/operation_spec.h"
#include "service/dispatch/job/pairs.h"
#include "service/dispatch/job/part_tables.h"
#include "service/dispatch/job/scratch.h"
#include "service/dispatch/job/slow_ranks_state.h"
#include "service/dispatch/job/steering_state.h"
#include "service/dispatch/job/uid_use.h"
#include "service/schedule/queue.h"
#include "service/session/nodes.h"
#include "service/session/session.h"
#include "transport/memory/pinned_memory.h"
#include "transport/transport.h"

namespace headrace::service {

struct JobRecord;

// A record that was read and checked and counts as posted once its ready word says so.
struct AwaitedPost {
  ipc::Record record;
  std::uint64_t sequence = 0;  // of its operation or pair; 0: it is a gradient
};
// The most that a rank of a correct client has posted: operations that have slots of their own, and
// gradients.
inline constexpr std::size_t kAwaitedUsual = kOperationsMax + kLayoutTensorsMax;

// One rank of the job.
struct JobRank {
  std::unique_ptr<Session> session;  // null before it attaches and after it was discarded
  bool gone = false;                 // its lease has ended; memory waits for open operations
  std::uint64_t posted = 0;          // records read
  std::uint64_t ended = 0;           // completions written
  std::uint64_t operations = 0;      // posted by them; the rest are gradients, sends and receives
  std::vector<AwaitedPost> awaited;  // in the order of its records
  OpenRanges open;                   // of its operations
};

// Keeps the first block of the plan's next iteration from beginning before a time.
struct Hold {
  TimeNs until_ns = 0;  // 0: nothing is held; kNever: until somebody releases it
  ipc::WaitReason reason = ipc::WaitReason::kNone;
  std::uint64_t argument = 0;
  TimeNs since_ns = 0;  // the block could have begun; 0: it could not yet
};

// Ranks on other nodes that have left, and what is impossible without them.
struct Departures {
  RankMask elsewhere = 0;  // that have left, and sent their last
  // Later operations cannot be carried out, and later iterations neither.
  std::uint64_t last_operation = ipc::kSequenceMax;
  std::uint64_t last_iteration = UINT64_MAX;
  std::string cause;
};

// The links to other nodes.
struct LinksState {
  std::optional<Failure> failure;
  TimeNs failed_ns = 0;
};

// What people have asked for, as far as it is in force; steering_state.h has what is not yet.
struct InForce {
  schedule::JobShare share;
  bool share_unsent = false;  // a lane had no room for it
  bool paused = false;
  std::uint32_t paused_by = 0;  // uid
  bool draining = false;
};

// What the next plan is made from, from the first plan on.
struct Measurements {
  std::unique_ptr<IterationTimes> times;
  std::vector<LaneSamples> samples;  // by lane
  CodecSamples codec_samples;
  // In which a rail was lost or came back, until the leader has the costs since; 0: none has.
  std::uint64_t rails_changed_in = 0;
  // The first of those in which it changed; one that comes and goes again and again is reported,
  // too.
  std::uint64_t rails_unsettled_in = 0;
};

// What encodings have left out of this node's sums: laid out as the gradients are, from the lowest
// on. In memory of the first local rank that has room for it, which outlives the service; else in
// memory of the job's own, and null until a plan encodes. In a rank's memory there may be room for
// right factors, too: of each gradient, so many bytes behind the first residual.
struct Residuals {
  // Null where there is no room for a codec's right factor of that gradient.
  std::byte* RightFactorOf(std::uint32_t gradient, const Codec& codec) const {
    return codec.parameter > factors_rank ? nullptr : memory + factor_offsets[gradient];
  }

  // Where GPUs find it, once it is pinned for them.
  std::byte* OnGpus() const {
    return pinning == Pinning::kDone ? pinned.on_gpus() + pinned_ahead : nullptr;
  }

  // What is pinned, for whoever unmaps the memory; GPUs do not reach it any more.
  transport::PinnedRange PopPinned() {
    if (pinning == Pinning::kDone) pinning = Pinning::kOver;
    return std::exchange(pinned, {});
  }

  std::byte* memory = nullptr;
  std::uint32_t factors_rank = 0;
  std::vector<std::uint64_t> factor_offsets;
  std::optional<std::uint32_t> of_rank;  // whose memory it is
  Mapping own;
  // Mapping pins its pages where GPUs encode gradients. Until the answer is there, nobody unmaps
  // it, also once it is not wanted any more (kCancelled). kOver: that was refused, or they are
  // given back.
  enum class Pinning : std::uint8_t { kNotAsked, kUnderWay, kCancelled, kDone, kOver };
  bool IsBeingPinned() const {
    return pinning == Pinning::kUnderWay || pinning == Pinning::kCancelled;
  }
  Pinning pinning = Pinning::kNotAsked;
  transport::PinnedRange pinned;
  std::size_t pinned_ahead = 0;  // bytes from the first page to `memory`
  LeftOut left_out;
  bool servers_announced = false;  // that servers begin with none
};

struct OpenCounts {
  std::uint64_t awaited = 0;  // posts of all members that await their ready word
  std::uint64_t operations = 0;
  std::uint64_t following = 0;  // of these, barriers that follow gradients
};

class Job {
 public:
  Job(const SessionIdentity& identity, TimeNs now);
  // What is pinned of sessions' memory goes before it.
  ~Job() { residuals.pinned = {}; }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  JobId id() const { return id_; }
  const std::string& name() const { return name_; }
  std::uint32_t world_size() const { return static_cast<std::uint32_t>(ranks_.size()); }
  // The ranks whose posts an operation waits for: those of this node.
  RankMask local_ranks() const { return local_ranks_; }
  // Their numbers, growing.
  const std::vector<std::uint32_t>& local() const { return local_; }

  // Whether the job's nodes meet at a rendezvous, and whether they have.
  bool spans_nodes() const { return !rendezvous_.empty(); }
  bool formed() const { return formed_; }
  // Whether all of its ranks have come, on all of its nodes; some may have left since.
  bool HasMet() const;
  // kCorrupt, and the job unchanged, if `nodes` is invalid (CheckNodes) or does not have the ranks
  // that are attached here, or if the job has begun.
  Status Form(JobNodes nodes);
  // The nodes among which blocks travel; null while that is not known and when all ranks are here.
  const JobNodes* nodes() const { return nodes_ ? &*nodes_ : nullptr; }
  TimeNs opened_ns() const { return opened_ns_; }
  std::uint32_t owner_uid() const { return owner_uid_; }
  std::uint32_t epoch() const { return epoch_; }
  // Raises the epoch: one of its ranks was in a later epoch than those that attached before it.
  void RaiseEpoch(std::uint32_t epoch);
  // How often its ranks have come back after a loss. Epochs of jobs of several nodes also grow with
  // other jobs of their leader; this number does not.
  std::uint32_t restarts() const { return restarts_; }

  void SetFailed(TimeNs now) {
    failed = true;
    if (failed_ns_ == 0) failed_ns_ = std::max<TimeNs>(now, 1);
    Changed();
  }
  TimeNs failed_ns() const { return failed_ns_; }  // when that was said first; 0: it was not

  // Records that something on the board about it or its ranks has changed; and how often that was
  // so.
  void Changed() { ++changes_; }
  std::uint64_t changes() const { return changes_; }

  JobRank& rank_entry(std::uint32_t rank) { return ranks_[rank]; }
  std::vector<JobRank>& ranks() { return ranks_; }
  const std::vector<JobRank>& ranks() const { return ranks_; }
  std::uint32_t attached() const;
  RankMask attached_ranks() const;
  bool HasSessions() const;
  // Where memory of the job's own is booked: on the first session of this node that is there when
  // there is some for the first time. Nothing: there is none.
  std::optional<SessionId> BookedOn();
  // kNotFound, kInvalidArgument or kBusy where that segment of the rank is in use, or is none.
  Status CheckRemovable(std::uint32_t rank, SegmentId segment);
  // Whether anything was posted that has not ended.
  bool busy() const { return open.operations > 0 || (gradients && gradients->AnyOpen()); }
  // Whether messages whose sends have ended may still be received.
  bool IsSending() const { return pairs_.sent() > 0 && !failed; }
  // Whether a shutdown waits for it.
  bool HoldsUp() const { return busy() || IsSending(); }
  // Iterations of which the rank has posted every gradient: none while no rank has a layout.
  std::uint64_t IterationsOf(std::uint32_t rank) const {
    return gradients ? gradients->IterationsOf(rank) : 0;
  }

  // The operation in the slot of `sequence`; it may be free or belong to another sequence.
  Operation& slot(std::uint64_t sequence) {
    switch (TrafficClassOf(sequence)) {
      case schedule::TrafficClass::kPlanned:
        return gradients->operation(sequence);
      case schedule::TrafficClass::kPaired:
      case schedule::TrafficClass::kReceived:
        return pairs_.at(sequence).operation;
      case schedule::TrafficClass::kPosted:
      case schedule::TrafficClass::kCopied:
        break;
    }
    return operations_[sequence % kOperationsMax];
  }
  const Operation& slot(std::uint64_t sequence) const {
    return const_cast<Job*>(this)->slot(sequence);  // which changes nothing
  }
  // Whether an operation posted before it has not begun, as when a rank's GPU reaches the later one
  // first. Between nodes operations begin in the order of their numbers. All local ranks have
  // posted this one.
  bool WaitsForEarlier(const Operation& operation) const {
    const std::uint64_t before = operation.spec.sequence - 1;
    const Operation& earlier = operations_[before % kOperationsMax];
    return nodes() != nullptr && earlier.spec.sequence == before &&
           earlier.state == Operation::State::kGathering;
  }
  // Whether it follows gradients of an iteration that has not ended on this node.
  bool WaitsForIteration(const OperationSpec& spec) const {
    return spec.follows != 0 && spec.follows > gradients->IterationsEnded();
  }
  std::array<Operation, kOperationsMax>& operations() { return operations_; }
  const std::array<Operation, kOperationsMax>& operations() const { return operations_; }
  Pairs& pairs() { return pairs_; }
  const Pairs& pairs() const { return pairs_; }
  PartTables& part_tables() { return part_tables_; }
  const PartTables& part_tables() const { return part_tables_; }
  // Every operation and every pair that is open, in no order. The visitor may end it.
  template <typename Visit>
  void ForEachOpen(Visit visit) {
    for (Operation& operation : operations_) {
      if (operation.open()) visit(operation);
    }
    for (std::size_t place = 0; place < pairs_.capacity(); ++place) {
      if (pairs_.pair(place).operation.open()) visit(pairs_.pair(place).operation);
    }
  }
  template <typename Visit>
  void ForEachOpen(Visit visit) const {
    for (const Operation& operation : operations_) {
      if (operation.open()) visit(operation);
    }
    for (std::size_t place = 0; place < pairs_.capacity(); ++place) {
      if (pairs_.pair(place).operation.open()) visit(pairs_.pair(place).operation);
    }
  }
  // Where rank `rank`'s memory of the operation in that slot is kept.
  std::byte*& memory(std::uint64_t sequence, std::uint32_t rank) {
    if (IsPaired(sequence)) return PartOf(pairs_.at(sequence).memory, sequence, rank);
    return memory_[(sequence % kOperationsMax) * ranks_.size() + rank];
  }
  // Whether what `rank` has posted of an open operation begins, or its result does, in `memory`.
  bool Uses(const Operation& operation, std::uint32_t rank, std::span<const std::byte> memory);

  // The GPU it is on, or transport::kHost.
  std::int8_t& device(std::uint64_t sequence, std::uint32_t rank) {
    if (IsPaired(sequence)) return PartOf(pairs_.at(sequence).devices, sequence, rank);
    return devices_[(sequence % kOperationsMax) * ranks_.size() + rank];
  }
  std::int8_t DeviceOf(const Operation& operation, std::uint32_t rank);

  // The number of the record by which `rank` posted the operation in that slot.
  std::uint64_t& RecordOf(std::uint64_t sequence, std::uint32_t rank) {
    if (IsPaired(sequence)) return PartOf(pairs_.at(sequence).records, sequence, rank);
    return records_[(sequence % kOperationsMax) * ranks_.size() + rank];
  }

  // The ranks of this node whose posts it waits for; of a job that has not formed all that may be.
  RankMask WantedOf(const Posts& posts) const {
    return posts.among & (formed_ ? local_ranks_ : ~RankMask{0} >> (64 - ranks_.size()));
  }
  // The lowest rank that has not posted it; one that is attached before one that is not.
  std::uint32_t FirstMissing(const Posts& posts) const;
  // The lowest rank whose GPU has not written its ready word, if nothing else is waited for.
  std::optional<std::uint32_t> FirstAwaited(const Posts& posts) const;
  // The missing rank: "rank 1 (pid 12) has not posted", or "the GPU of rank 1 (pid 12) has not come
  // as far as". The caller appends the operation.
  std::string DescribeMissing(const Posts& posts) const;

  // A free block of the pool; null when all are in use. Its place goes into stage tokens. It is of
  // the operation's class until it is freed.
  Block* AllocateBlock(const Operation& operation);
  std::size_t BlocksIn(schedule::TrafficClass traffic_class) const {
    return blocks_in_[static_cast<std::size_t>(traffic_class)];
  }
  bool has_free_blocks() const { return !free_blocks_.empty(); }
  std::size_t free_blocks_count() const { return free_blocks_.size(); }
  void FreeBlock(Block& block);
  std::uint32_t PlaceOf(const Block& block) const {
    return static_cast<std::uint32_t>(&block - blocks_.data());
  }
  Block& block(std::uint32_t place) { return blocks_.at(place); }
  std::vector<Block>& blocks() { return blocks_; }
  const std::vector<Block>& blocks() const { return blocks_; }
  // In which the operation's sum crosses between nodes. The same on all nodes: the gradients of a
  // plan in the host's memory, as the plan says, where a block is worth it.
  Codec CodecOf(const Operation& operation) const;
  // Whether this node's ranks have handed in gradients, and on GPUs.
  bool HasGradientsOnGpus() const;
  // Whether it is GPUs that encode them, or will be.
  bool EncodesOnGpus() const {
    return device_codecs != 0 && HasGradientsOnGpus() &&
           residuals.pinning != Residuals::Pinning::kOver;
  }
  // The share of the operation's bytes that crosses between nodes.
  double SentShareOf(const Operation& operation) const;
  // Whether the operation's results are compared: they are the same on every rank, its turn has
  // come, and there are several ranks. GPU memory is not compared.
  bool Verifies(const Operation& operation) const;
  // "the result of rank 3 (pid 12) in block 2 of iteration 400 differs from that of rank 2 (pid
  // 11)"
  std::string DescribeDifference(const Operation& operation, const Block& block,
                                 std::uint64_t differing) const;
  // Memory for blocks of GPUs that go to other nodes, by class of blocks: the host's first, then
  // that of the GPU of each lane, and last the host's for factors of matrices that GPUs have.
  using GpuScratch = std::array<Scratch, 1 + kRailsMax + 1>;
  static constexpr std::size_t kFactorsPlace = 1 + kRailsMax;
  std::array<GpuScratch, schedule::kTrafficClassesCount> gpu_scratch;
  // Likewise for sums of the host's memory that belong to no rank of this node.
  struct HostScratch {
    Mapping memory;  // untouched, and so without memory, until a block needs it
    std::vector<std::byte*> free;
    bool is_booked = false;
  };
  HostScratch host_scratch;
  GpuScratch& ScratchOf(const Block& block) {
    return gpu_scratch[static_cast<std::size_t>(block.traffic_class())];
  }
  // Whether the block's rank, where the collective has one, is of this node.
  bool IsRootHere(const Block& block) const { return IsHere(block.root); }
  // It has left the job, or is lost.
  bool IsGone(std::uint32_t rank) const {
    return ranks_[rank].gone || (departures.elsewhere & Bit(rank)) != 0;
  }
  bool IsHere(std::uint32_t rank) const { return (local_ranks_ & Bit(rank)) != 0; }
  // "rank 2 (pid 77) posted all_reduce of ... as operation 9; rank 0 (pid 75) posted ..."
  std::string DescribeMismatch(const Operation& operation, std::uint32_t rank,
                               const OperationSpec& spec) const;
  // "operation 9 [all_reduce of 1024 float32 (sum), conv1.weight]", "pair 3 [send of 4 float32 from
  // rank 0 to rank 1, tag 7]"
  std::string DescribeOperation(const Operation& operation) const;
  std::string DescribeRank(std::uint32_t rank) const;
  // How far a rank is: "operation 12", "operation 2 and iteration 57".
  std::string DescribeProgress(std::uint32_t rank) const;
  // "gradient 5 [layer1.0.conv1.weight] of iteration 57"
  std::string DescribeGradient(std::uint32_t tensor) const;
  // "2 nodes have met: a (ranks 0, 1), b (rank 2); epoch 1, blocks of 4194304 bytes"
  std::string DescribeNodes() const;
  // "node-c", or "node-c +2": the nodes of a set, bit i for the one at place i.
  std::string DescribePeers(std::uint64_t nodes) const;
  // The name of the tensor the first post names; empty for one-off memory.
  std::string_view TensorName(const Operation& operation) const;

  // The deadline of a post that is made now. Deadlines of a job that is to be paused stand still
  // until it continues, and are then moved by the same time.
  TimeNs DeadlineOf(std::uint32_t timeout_ms, TimeNs now) const {
    const TimeNs frozen_ns = steering.frozen_since_ns;
    return (frozen_ns != 0 ? frozen_ns : now) + TimeNs{timeout_ms} * kMillisecond;
  }

  // Why no operation can succeed any more (a rank is gone); set once.
  std::optional<Failure> failure;
  // Whether the failure is worth the state "failed", or just the orderly end of the job.
  bool failed = false;
  // Ready operations, blocks of the plan and pairs with blocks still to make, each in their order.
  std::array<boost::circular_buffer<std::uint64_t>, schedule::kTrafficClassesCount> making;
  // Places of the blocks that have not entered the lanes between nodes, by class (operations and
  // the plan; pairs are in none): there they enter in the same order on every node, whatever comes
  // before that on this one.
  std::array<boost::circular_buffer<std::uint32_t>, schedule::kTrafficClassesCount> crossing;
  // What a job of several nodes waits for before it can begin, as its leader has it: shown to
  // people, and the cause of what times out before then.
  std::string waits_for;
  Departures departures;
  LinksState links;
  InForce in_force;
  SteeringState steering;
  SlowRanksState slow;
  // Results are compared every so many iterations and operations; 0: never.
  std::uint32_t verify = 0;
  UidUse* use = nullptr;  // of its owner, while the flow knows the job
  Hold hold;              // set by Plans::SetHold
  // Null until the job has handed in its layout.
  std::unique_ptr<Gradients> gradients;
  std::optional<Failure> gradients_failure;
  Measurements measured;
  Residuals residuals;
  MatrixFactors factors;
  // On which memory of the job's own is booked, once there is some: until the job is over.
  std::optional<SessionId> booked_on;
  // Codecs in which GPUs' memory crosses between its nodes from where it is, bit (1 <<
  // Codec::Kind).
  std::uint32_t device_codecs = 0;
  OpenCounts open;
  // What is kept of it for people, from the flow's AddJob on; owned by the recorder. Only what
  // observes reads or changes it, and nothing that moves depends on it.
  JobRecord* record = nullptr;

 private:
  static bool IsPaired(std::uint64_t sequence) {
    return TrafficClassOf(sequence) == schedule::TrafficClass::kPaired;
  }
  template <typename Value>
  Value& PartOf(std::array<Value, 2>& sides, std::uint64_t sequence, std::uint32_t rank) {
    return sides[pairs_.at(sequence).SideOf(rank)];
  }

  JobId id_;
  std::string name_;
  std::uint32_t owner_uid_;
  std::uint32_t epoch_;
  std::uint32_t restarts_;
  TimeNs opened_ns_;
  TimeNs failed_ns_ = 0;
  std::vector<JobRank> ranks_;
  std::array<Operation, kOperationsMax> operations_;
  Pairs pairs_;
  PartTables part_tables_;
  std::vector<std::byte*> memory_;
  std::vector<std::int8_t> devices_;
  std::vector<std::uint64_t> records_;
  std::string rendezvous_;
  bool formed_ = false;
  std::uint64_t changes_ = 1;  // of which none was shown
  std::optional<JobNodes> nodes_;
  RankMask local_ranks_ = 0;
  std::vector<std::uint32_t> local_;
  std::vector<Block> blocks_;
  std::vector<std::uint32_t> free_blocks_;
  std::array<std::size_t, schedule::kTrafficClassesCount>
      blocks_in_{};  // that are not free, by class
};

using Jobs = std::vector<std::unique_ptr<Job>>;

}  // namespace headrace::service
