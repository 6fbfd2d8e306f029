// A block of an operation on its way: a range of the operation's elements, and the stage of its
// route that it is at. A stage is one entry in the unified queue, or, between nodes with several
// rails, one entry for each rail.
//
// Blocks are in a pool of their job and identified by their index in it; a queued stage's token
// says which job, block and part it is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "ipc/base/clock.h"
#include "ipc/base/ids.h"
#include "service/schedule/queue.h"
#include "transport/transport.h"

namespace headrace::service {

inline constexpr std::size_t kBlocksMax = 1024;  // in the queue or on lanes, per job
inline constexpr std::size_t kRailsMax = 8;      // lanes between nodes
// Blocks of one operation: 16 bits of a block's position say which one it is.
inline constexpr std::uint64_t kBlocksPerOperationMax = std::uint64_t{1} << 16;

// Bits of a block's sequence that say what it numbers: operations, blocks of the plan and pairs (a
// send with its receive) have separate numbers.
inline constexpr std::uint64_t kPlannedSequence = std::uint64_t{1} << 47;
inline constexpr std::uint64_t kPairedSequence = std::uint64_t{1} << 46;

constexpr schedule::TrafficClass TrafficClassOf(std::uint64_t sequence) {
  if ((sequence & kPlannedSequence) != 0) return schedule::TrafficClass::kPlanned;
  return (sequence & kPairedSequence) != 0 ? schedule::TrafficClass::kPaired
                                           : schedule::TrafficClass::kPosted;
}

// A pair's sequence is its number, which wraps after a billion, and its place among the job's
// pairs.
inline constexpr unsigned kPairPlaceBits = 16;
inline constexpr std::uint64_t kPairNumberMax = (std::uint64_t{1} << 30) - 1;

constexpr std::uint64_t PairSequence(std::uint64_t number, std::uint32_t place) {
  return kPairedSequence | (number & kPairNumberMax) << kPairPlaceBits | place;
}
constexpr std::size_t PairPlace(std::uint64_t sequence) {
  return sequence & ((std::uint64_t{1} << kPairPlaceBits) - 1);
}
constexpr std::uint64_t PairNumber(std::uint64_t sequence) {
  return sequence >> kPairPlaceBits & kPairNumberMax;
}

// The stages of a block, in this order; a route leaves out those that it does not need.
enum class BlockStage : std::uint8_t {
  kInNode = 0,        // the node's ranks are summed; the whole collective when all ranks are here
  kBetweenNodes = 1,  // one message stream per node, however many ranks it has
  kToRanks = 2,       // the result goes to the node's other ranks
  kVerify = 3,        // what the ranks have got is compared, and moves nowhere
  kDone = 4,
};

// Elements [begin, begin + count) of every rank's memory.
struct Range {
  std::uint64_t begin = 0;
  std::uint64_t count = 0;
};

// One lane's share of a block's stage.
struct BlockPart {
  enum class State : std::uint8_t { kNone, kWaiting, kMoving };
  State state = State::kNone;
  Range range;
  schedule::QueuedStage queued;
  TimeNs begin_ns = 0;  // when the lane got it
};

// Whether a block is on its way to the lanes between nodes, or waits for earlier blocks.
enum class Crossing : std::uint8_t { kNone, kComes, kWaits };

struct Block {
  std::uint64_t sequence = 0;  // of its operation; 0: the place is free
  std::uint32_t index = 0;     // within the operation
  Range range;
  std::uint32_t root = 0;  // the rank whose part or data it is, where the collective has one
  // A message's sender and receiver. The range is then that of the message.
  std::uint32_t source = 0;
  std::uint32_t target = 0;
  bool comes = false;                // from another node's send
  bool copies = false;               // as Operation's
  std::uint32_t parts_to_stand = 0;  // of those: parts that their lanes are to accept,
  std::uint32_t parts_standing = 0;  // and have accepted
  BlockStage stage = BlockStage::kInNode;
  Crossing crossing = Crossing::kNone;
  std::uint32_t parts_open = 0;  // of this stage
  std::uint32_t parts_count = 0;
  std::byte* scratch = nullptr;  // the host's, for a sum that belongs to no rank of this node
  // Where GPUs find the scratch of a block in their memory: one for all of it, or, where it crosses
  // `from_gpus`, one for each part, on the GPU of the part's lane.
  bool from_gpus = false;
  // Whose memory the one scratch was asked of; kHost: the host's.
  std::int8_t scratch_gpu = transport::kHost;
  std::array<std::byte*, kRailsMax> scratch_on_gpus{};
  // Pinned memory of the host for the factors of a matrix that a GPU encodes, and where GPUs find
  // it.
  std::byte* factors = nullptr;
  std::byte* factors_on_gpus = nullptr;
  std::array<BlockPart, kRailsMax> parts;

  // The block's name on every node and its place in the job's order.
  std::uint64_t position() const { return sequence << 16 | index; }
  schedule::TrafficClass traffic_class() const {
    if (copies) return schedule::TrafficClass::kCopied;
    return comes ? schedule::TrafficClass::kReceived : TrafficClassOf(sequence);
  }
  // The GPU that encodes and decodes it for other nodes, in its memory; kHost: none does.
  std::int8_t coded_on() const {
    const bool on_gpu = scratch == nullptr && scratch_on_gpus[0] != nullptr && !from_gpus;
    return on_gpu ? scratch_gpu : transport::kHost;
  }
  std::size_t PartOf(const BlockPart& part) const {
    return static_cast<std::size_t>(&part - parts.data());
  }
};

constexpr std::uint64_t SequenceOf(std::uint64_t position) { return position >> 16; }

// What a stage's token says.
struct StageToken {
  JobId job;
  std::uint32_t block = 0;  // place in the job's pool
  std::uint32_t part = 0;

  std::uint64_t Pack() const {
    return std::uint64_t{job.value} << 32 | std::uint64_t{block} << 8 | part;
  }
  static StageToken Unpack(std::uint64_t token) {
    return {JobId{static_cast<std::uint32_t>(token >> 32)},
            static_cast<std::uint32_t>(token >> 8 & 0xffffff),
            static_cast<std::uint32_t>(token & 0xff)};
  }
};

}  // namespace headrace::service
