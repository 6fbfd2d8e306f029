// The data of one job that only people read: its rows on the board, what the flight recorder needs
// until it writes a row, sums, and past reports. A job has the address of its record and never
// reads it; nothing here changes what a job does.
//
// Plain data, changed by the recorder (recorder.h) and its neighbours in this layer only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/board_layout.h"
#include "service/dispatch/job/job.h"
#include "service/watch/board_writer.h"

namespace headrace::service {

// Sums since the job opened, as its row on the board shows them.
struct JobSums {
  std::uint64_t operations_ended = 0;
  std::uint64_t operations_failed = 0;
  std::uint64_t bytes_moved = 0;
  std::uint64_t blocks_ended = 0;
  std::uint64_t sends_ended = 0;
  std::uint64_t receives_ended = 0;
  std::uint64_t sends_bytes = 0;
  transport::CodecUse codec{};  // with squares that fade
  std::uint64_t encoded_gpu_bytes = 0;
  TimeNs gathering_ns = 0;
  TimeNs waiting_ns = 0;
  TimeNs moving_ns = 0;
  TimeNs held_ns = 0;
  std::array<std::uint64_t, ipc::kCodeCounts> failed_by_code{};
};

// What a job has of one lane, and where the board shows it.
struct LaneShare {
  ipc::ShareRow row{};
  std::uint16_t board_row = kNoRow;
  bool dirty = false;
};

// The stages that a block has behind it; those beyond the row's room are only counted.
struct BlockRecord {
  struct StageTimes {
    std::uint8_t lane = 0;
    std::uint8_t stage = 0;
    TimeNs queued_ns = 0;
    TimeNs begin_ns = 0;  // 0: no lane ever had it
    TimeNs end_ns = 0;
  };
  std::uint32_t count = 0;
  std::array<StageTimes, ipc::kFlightStagesMax> stages;
  std::array<TimeNs, kRailsMax> queued_ns{};  // by part of its stage
  transport::CodecUse codec{};                // of all parts between nodes; zeros: none is encoded
};

// One iteration of one rank while its gradients come in.
struct PassRecord {
  std::uint64_t iteration = 0;
  std::uint32_t posts = 0;
  TimeNs begin_ns = 0;
  TimeNs last_ns = 0;
  TimeNs forward_ns = 0;
  TimeNs waited_ns = 0;
};

// What is recorded of one rank since it attached.
struct RankRecord {
  std::uint16_t board_row = kNoRow;
  std::uint64_t bytes_posted = 0;
  std::uint64_t last_posts = 0;
  TimeNs late_ns = 0;
  TimeNs waited_ns = 0;
  // Two iterations of a rank can be under way, one beginning while the other ends.
  std::array<PassRecord, 2> passes;
};

// The job's place in the flight recorder.
struct FlightRecord {
  std::uint16_t place = kNoRow;  // in the board's tables; none: the job goes unrecorded
  ipc::FlightJobRow row{};
  bool dirty = false;                        // the row on the board is older
  std::vector<TimeNs> operations;            // by slot, then by rank: when the rank posted it
  std::vector<TimeNs> gradients;             // by tensor, then by rank: likewise
  std::vector<std::array<TimeNs, 2>> pairs;  // by place, then by side: likewise
};

// The rows of a job's plan in force, and of the block that comes next.
struct PlanRecord {
  std::uint16_t row = kNoRow;
  std::uint16_t head_row = kNoRow;
  ipc::QueueRow head_shown{};  // there
  std::vector<std::uint16_t> block_rows;
};

// Where operations as they were posted, and blocks of the plan, may wait. In each place the first
// one that does stands for those behind it.
enum class LatePlace : std::uint8_t {
  kOperation,       // not posted by all ranks
  kOperationMoves,  // in the queue or on a lane
  kHead,            // the plan's next block: likewise not posted by all
  kBlockMoves,
  kPair,  // a send or receive: the other side was not posted
  kPairMoves,
};
inline constexpr std::size_t kLatePlaces = 6;

// One wait: `number` and `since_ns` tell it from the next one in its place.
struct LateWait {
  std::uint64_t number = 0;  // sequence; of the head: iteration << 32 | gradient; 0: nothing waits
  TimeNs since_ns = 0;

  friend bool operator==(const LateWait&, const LateWait&) = default;
};

// What is known of how long a job waits: straggler_monitor.h.
struct StragglerState {
  struct Reported {
    LateWait wait;
    std::string subject;  // what went on, for people; empty: they have not heard of it
  };
  std::array<Reported, kLatePlaces> reported;
  std::uint32_t reported_count = 0;
  // Waits in each place count from here at the earliest: what was reported ended then, or the job
  // was paused until then.
  std::array<TimeNs, kLatePlaces> not_before_ns{};
  bool was_paused = false;
  TimeNs asked_ns = 0;  // when lanes were asked last
  // Reports that may be made until the allowance is refilled.
  std::uint32_t log_tokens = 8;
  TimeNs refilled_ns = 0;
};

// What the job's last loss has cost, and those before.
struct RecoveryRecord {
  TimeNs lost_ns = 0;  // when the last epoch failed; 0: nothing of that is under way
  std::uint32_t world_before = 0;
  std::uint32_t count = 0;
  TimeNs last_ns = 0;
  TimeNs sum_ns = 0;
  std::uint32_t evictions = 0;  // in the epochs before
};

// Encoded values that were not finite, since the last iteration that ended.
struct NotFiniteRecord {
  std::uint64_t blocks = 0;  // of the codec
  BlockName first{};         // that had one
  std::uint64_t iterations = 0;
  std::uint64_t next_told = 1;  // of these: people hear of it
};

struct JobRecord {
  std::uint16_t board_row = kNoRow;
  std::uint64_t changes_shown = 0;  // Job::changes() as of the row
  JobSums sums;
  std::vector<RankRecord> ranks;
  std::vector<LaneShare> shares;  // by lane
  // The board row of each work item, by its slot.
  std::array<std::uint16_t, kOperationsMax> operation_rows{};
  std::array<std::uint16_t, kPlannedOpenMax> planned_rows{};
  std::vector<std::uint16_t> pair_rows;  // by place, as many as there are
  std::vector<BlockRecord> blocks;       // by place in the job's pool
  PlanRecord plan;
  FlightRecord flight;
  StragglerState stragglers;
  std::uint32_t events_sent = 0;
  RecoveryRecord recovery;
  NotFiniteRecord not_finite;
  bool said_as_it_is = false;  // that NCCL leaves out the codecs that operations ask for

  std::uint16_t& RowOf(const Operation& operation) {
    const std::uint64_t sequence = operation.spec.sequence;
    if (operation.paired()) return pair_rows[PairPlace(sequence)];
    return operation.planned() ? planned_rows[sequence % kPlannedOpenMax]
                               : operation_rows[sequence % kOperationsMax];
  }
};

}  // namespace headrace::service
