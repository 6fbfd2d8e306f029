// The data path between client and service: one 64-byte record per operation, and the 8-byte word
// by which the service reports its end. PROTOCOL.md describes every byte.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "ipc/base/collective.h"
#include "ipc/base/error.h"

namespace headrace::ipc {

static_assert(std::endian::native == std::endian::little, "the channel is little endian");

// Operations of one session that may be open (posted, not ended) at one time. Operation n uses
// record slot and completion word n % kOperationsMax, so a slot is free once operation
// n - kOperationsMax has ended; the ring needs no indices.
inline constexpr std::uint64_t kOperationsMax = 1024;

// Operations are numbered 1, 2, ... within a session. The number must fit a completion word.
inline constexpr std::uint64_t kSequenceMax = (std::uint64_t{1} << 48) - 1;

inline constexpr std::uint32_t kNoTensor = 0xffffffff;
// Kinds of a record beside the collectives, matched by source, target and tag.
using headrace::IsSendOrReceive;
using headrace::kReceive;
using headrace::kSend;
// In `root` of a receive: from whichever rank sends first.
inline constexpr std::uint32_t kAnyRank = 0xffffffff;

// `commit` is stored last (release) and equals the operation's sequence number; everything else is
// valid once it is seen. Every field is checked by the service after it was copied once.
struct Record {
  std::uint8_t kind = 0;       // headrace::Collective, kSend or kReceive
  std::uint8_t dtype = 0;      // headrace::DType; that of the tensor when one is named
  std::uint8_t reduction = 0;  // headrace::Reduction; kSum where nothing is reduced
  std::uint8_t flags = 0;      // kRecordIsGradient and those after it: see below
  std::uint32_t tensor = kNoTensor;
  std::uint32_t segment = 0;  // read when tensor is kNoTensor
  // Where the kind has one; the other rank, for send and receive; with kRecordHasResult, a segment.
  std::uint32_t root = 0;
  std::uint64_t offset = 0;      // bytes from the start of the tensor (or segment)
  std::uint64_t count = 0;       // elements
  std::uint32_t timeout_ms = 0;  // 0: the job's default
  std::uint32_t parts = 0;       // with kRecordHasParts, the segment of the parts table; else 0
  std::uint64_t posted_ns = 0;   // CLOCK_MONOTONIC at post; informative
  // For send and receive; byte offset of the parts table; for an all_reduce, SteeringValue of the
  // codec in which it crosses between nodes; else 0.
  std::uint64_t tag = 0;
  std::uint64_t commit = 0;
};
static_assert(sizeof(Record) == 64 && alignof(Record) == 8);
static_assert(std::is_trivially_copyable_v<Record>);
static_assert(offsetof(Record, tensor) == 4 && offsetof(Record, segment) == 8);
static_assert(offsetof(Record, root) == 12 && offsetof(Record, offset) == 16);
static_assert(offsetof(Record, count) == 24 && offsetof(Record, timeout_ms) == 32);
static_assert(offsetof(Record, parts) == 36);
static_assert(offsetof(Record, posted_ns) == 40 && offsetof(Record, tag) == 48);
static_assert(offsetof(Record, commit) == 56);

// Record::flags: the record is a GradientRecord.
inline constexpr std::uint8_t kRecordIsGradient = 1;
// Record::flags: the memory is ready once the channel's ready word of the record's slot is at least
// its number. A stream of a GPU writes that word, when it has come so far; until then the record
// counts as not posted.
inline constexpr std::uint8_t kRecordAwaitsWord = 2;
// Record::flags: the record has a parts table, in memory of the host.
inline constexpr std::uint8_t kRecordHasParts = 4;
// Record::flags of a barrier: it begins on a node when the gradients that the node's ranks have
// posted before it have ended there, so that, when it ends, every rank has the averages of these.
inline constexpr std::uint8_t kRecordFollowsGradients = 8;
// Record::flags of a reduce_scatter with a parts table: the record's memory is only read. The
// reduction of the rank's own part goes to segment `root`, from the element on that the row of the
// rank itself says.
inline constexpr std::uint8_t kRecordHasResult = 16;
inline bool HasResult(const Record& record) { return (record.flags & kRecordHasResult) != 0; }

// A row of a parts table, which has one for each rank of the job: what of this rank's memory goes
// to that rank, and what of it is filled from there. In elements; offsets count from the record's
// memory. In what a kind does not use, and in the row of this rank itself, all is 0. With
// kRecordHasResult, what the row of this rank itself receives lies in the segment of the result.
struct PartRow {
  std::uint64_t sent_offset = 0;
  std::uint64_t sent_count = 0;
  std::uint64_t received_offset = 0;
  std::uint64_t received_count = 0;

  friend bool operator==(const PartRow&, const PartRow&) = default;
};
static_assert(sizeof(PartRow) == 32 && std::is_trivially_copyable_v<PartRow>);
static_assert(offsetof(PartRow, sent_count) == 8 && offsetof(PartRow, received_offset) == 16);
static_assert(offsetof(PartRow, received_count) == 24);

// What a record says when `flags` has kRecordIsGradient: a gradient of the session's layout is
// ready for this iteration. It is the all_reduce of one whole tensor, and which block carries it
// when is the plan's business. Each gradient is posted once an iteration, in any order, and again
// only after it has ended; the service counts the iterations. All posts of one iteration, of all
// ranks, have the same number of contributors.
struct GradientRecord {
  std::uint8_t kind = 0;           // kAllReduce
  std::uint8_t dtype = 0;          // the layout's
  std::uint8_t reduction = 0;      // the layout's
  std::uint8_t flags = 0;          // kRecordIsGradient, and kRecordAwaitsWord or not
  std::uint32_t tensor = 0;        // of the layout
  std::uint64_t forward_ns = 0;    // that this iteration's forward pass spent on it
  std::uint64_t backward_ns = 0;   // CLOCK_MONOTONIC when this iteration's backward pass began
  std::uint64_t count = 0;         // elements; the tensor's
  std::uint32_t timeout_ms = 0;    // 0: the job's default
  std::uint32_t contributors = 0;  // ranks that an average is divided by; 0: all
  std::uint64_t posted_ns = 0;     // CLOCK_MONOTONIC at post
  std::uint64_t waited_ns = 0;     // that this iteration's forward pass waited for it before
  std::uint64_t commit = 0;
};
// Times of a forward pass beyond this are said as this: 78 hours.
inline constexpr std::uint64_t kGradientTimeMax = std::uint64_t{1} << 48;
static_assert(sizeof(GradientRecord) == sizeof(Record));
static_assert(std::is_trivially_copyable_v<GradientRecord>);
static_assert(offsetof(GradientRecord, tensor) == offsetof(Record, tensor));
static_assert(offsetof(GradientRecord, forward_ns) == 8);
static_assert(offsetof(GradientRecord, backward_ns) == 16);
static_assert(offsetof(GradientRecord, contributors) == 36);
static_assert(offsetof(GradientRecord, waited_ns) == 48);
static_assert(offsetof(GradientRecord, posted_ns) == 40 && offsetof(GradientRecord, commit) == 56);

// The completion word of operation `sequence`, stored once when it ends:
//   bits 63..16 sequence, bits 15..8 index of its error text, bits 7..0 code (0 = ok).
// The index of a receive that ended well is the rank that sent.
// Words of one slot only grow, so "ended" is a comparison.
struct CompletionWord {
  std::uint64_t sequence = 0;
  std::uint8_t text_index = 0;
  Code code = Code::kOk;

  std::uint64_t Pack() const {
    return sequence << 16 | std::uint64_t{text_index} << 8 | static_cast<std::uint64_t>(code);
  }
  static CompletionWord Unpack(std::uint64_t word) {
    return {word >> 16, static_cast<std::uint8_t>(word >> 8), static_cast<Code>(word & 0xff)};
  }
};

// Whether `word`, read from the slot of `sequence`, says that this operation has ended.
constexpr bool HasEnded(std::uint64_t word, std::uint64_t sequence) {
  return word >> 16 >= sequence;
}

}  // namespace headrace::ipc
