// The board: one file the service writes and anyone permitted maps read-only, to see what every job
// is waiting for. Plain fixed-size tables; BOARD.md describes every byte.
//
// Each row is guarded by a version word (odd while it is written), so a reader never blocks the
// service and gets a whole row or tries again. Each table has one writing actor. Times are
// CLOCK_MONOTONIC in nanoseconds unless a name says otherwise; text ends in NUL.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace headrace::ipc {

inline constexpr std::uint64_t kBoardMagic = 0x3144524f42445248;  // "HRDBORD1"
inline constexpr std::uint32_t kBoardVersion = 17;
inline constexpr std::int64_t kTimeUnknown = -1;  // in rows whose field says that it may be

inline constexpr std::size_t kJobRowsMax = 64;
inline constexpr std::size_t kRankRowsMax = 512;
inline constexpr std::size_t kQueueRowsMax = 1024;
inline constexpr std::size_t kLaneRowsMax = 16;
inline constexpr std::size_t kPlanRowsMax = kJobRowsMax;
inline constexpr std::size_t kPlanBlockRowsMax = 4096;  // of all jobs
inline constexpr std::size_t kEventRowsMax = 128;
inline constexpr std::size_t kShareRowsMax = 256;   // job and lane pairs
inline constexpr std::size_t kFlightJobsMax = 24;   // jobs whose last blocks are kept
inline constexpr std::size_t kFlightRowsMax = 384;  // of each of them
inline constexpr std::size_t kPassRowsMax = 256;    // likewise
inline constexpr std::size_t kFlightRanksMax = 16;  // local ranks whose posts are kept apart
inline constexpr std::size_t kFlightStagesMax = 6;
inline constexpr std::size_t kGpuRowsMax = 16;   // GPUs of the node that the service uses
inline constexpr std::size_t kPeerRowsMax = 64;  // services of other nodes
inline constexpr std::size_t kUserRowsMax = 128;
inline constexpr std::size_t kServedRowsMax = 64;  // jobs that a server sums for
inline constexpr std::size_t kCodeCounts = 16;     // one for each headrace::Code, and room

enum class ServiceState : std::uint32_t { kStarting = 1, kRunning, kDraining, kStopped };
enum class JobState : std::uint32_t { kGathering = 1, kRunning, kFailed };

// Where a block stage stands.
enum class StageState : std::uint32_t {
  kGathering = 1,  // not every rank has posted it
  kWaiting,        // in the unified queue
  kMoving,         // on its lane
};

// Why it stands there; `wait_argument` says which rank or block.
enum class WaitReason : std::uint32_t {
  kNone = 0,
  kRankNotReady,     // argument: lowest rank that has not posted it
  kRankNotAttached,  // argument: lowest rank that has not joined the job
  kNoCredit,         // the lane has as many bytes in flight as it may
  kBehindBlock,      // argument: block of the same job that goes first
  kBehindJob,        // argument: job id whose turn it is on the lane
  kNodesNotReady,    // the job's nodes have not all met; the job's row says what is missing
  kNoPlan,           // the job has no plan yet: not all of its ranks have handed in their layout
  kPeer,             // on its lane, and nothing comes from the node that `peer` names
  kPaused,           // the job is paused; argument: uid of who did it
  kRateLimit,        // the job has used up its rate; argument: nanoseconds until it goes on
  kInterleaved,      // its iteration is held back for another job's; argument: that job's id
  kGpuNotReady,  // argument: the lowest rank that has posted it and whose GPU has not come so far
  kInFlight,     // as many of the job's stages as may are on the lane; argument: how many may
  kIteration,    // of gradients, which goes first; argument: the iteration that has not ended
  kLaneFull,     // stages of all jobs: the lane has as many as it takes
  kNoReceive,    // of a send: the target has not posted its receive; argument: the target
  kNoSend,       // of a receive; argument: the source, or UINT32_MAX: any rank may be
  kNoRoom,       // the job has as many blocks under way as it may, or no scratch memory is left
  kPlanSwitch,   // the nodes have not all taken the next plan; argument: its first iteration
};

// Written by rpc, once at start and at state changes.
struct ServiceRow {
  std::uint32_t state;  // ServiceState
  std::int32_t pid;
  std::uint32_t uid;
  std::uint32_t protocol_version;
  std::int64_t started_ns;
  std::int64_t started_unix_ns;
  char version[32];
  char socket_path[128];
  char reduce_target[32];  // SIMD target of the reductions
  // What one uid may hand over, of host and GPUs; 0: no limit. Where the service chose it, three
  // quarters of memory_found, and not for root and `uid`.
  std::uint64_t memory_per_uid;
  std::uint64_t memory_found;   // 0: memory_per_uid was configured
  char memory_limited_by[128];  // the control group's file that says so; empty: the machine's
};

// Counters of the data path; written by dispatch.
struct CountersRow {
  std::uint64_t records_read;
  std::uint64_t operations_ended;
  std::uint64_t operations_failed;
  std::uint64_t bytes_moved;      // bytes of one rank's memory, summed over operations
  std::uint64_t doorbells;        // times the service was woken by a client
  std::uint64_t sleeps;           // times the data path went to sleep
  std::uint64_t wake_calls;       // futex system calls to wake clients
  std::uint64_t records_refused;  // malformed or disallowed
  std::uint64_t sessions_opened;
  std::uint64_t sessions_closed;
  std::uint64_t queue_rows_left_out;  // block stages that found no free row
  std::uint64_t late_reports;         // operations that waited longer than they should
  std::uint64_t slow_reports;         // ranks that were slow for longer than their job allows
  std::uint64_t quota_refusals;       // of sessions, memory and posts
  std::uint64_t jobs_unrecorded;      // that found no place in the flight recorder
  std::uint64_t blocks_verified;      // whose results were compared
  std::uint64_t failed_by_code[kCodeCounts];  // operations, by headrace::Code
};

struct JobRow {
  std::uint32_t id;     // 0: free row
  std::uint32_t state;  // JobState
  std::uint32_t owner_uid;
  std::uint32_t world_size;
  std::uint32_t ranks_attached;
  std::uint32_t epoch;  // as its nodes agreed on it
  std::int64_t opened_ns;
  std::uint64_t operations_ended;
  std::uint64_t operations_failed;
  std::uint64_t bytes_moved;
  std::uint64_t operations_open;    // operations and gradients
  std::uint32_t weight;             // share of a lane among jobs of its priority
  std::uint32_t priority;           // class; larger goes first
  std::uint32_t paused;             // 1: nothing of it begins
  std::uint32_t draining;           // 1: it ends after what is posted
  std::uint64_t limit_bytes_per_s;  // on each lane; 0: none
  std::uint64_t blocks_ended;
  std::int64_t gathering_ns;                  // sum: from an operation's first post to its last
  std::int64_t waiting_ns;                    // sum: block stages stood in the queue
  std::int64_t moving_ns;                     // sum: block stages were on a lane
  std::int64_t held_ns;                       // sum: iterations were held back for another job's
  std::uint64_t failed_by_code[kCodeCounts];  // operations, by headrace::Code
  std::uint64_t device_bytes[kGpuRowsMax];    // mapped of its ranks' memory, by GPU
  std::uint32_t restarts;                     // how often its ranks came back after a loss
  std::uint32_t sends_class;                  // headrace::SendsClass
  std::uint64_t sends_ended;                  // well, of this node's ranks
  std::uint64_t receives_ended;               // likewise
  std::uint64_t sends_bytes;                  // of both, one that is both counts once
  std::uint64_t sends_waiting;                // and receives, for their other side
  std::uint64_t encoded_bytes;        // of messages to other nodes, had they not been encoded
  std::uint64_t encoded_sent_bytes;   // that these have taken
  std::int64_t encode_ns;             // sum
  std::int64_t decode_ns;             // sum
  std::uint64_t residual_millionths;  // norm of what was left out over that of the sums, lately
  std::uint32_t world_before;         // ranks before the last recovery; 0: there was none
  std::uint32_t recoveries;           // epochs that followed one that failed here
  std::int64_t recovery_ns;   // the last: from the failure to the first operation that ended well
  std::int64_t recovered_ns;  // sum of all
  std::uint32_t joiners_waiting;  // processes that wait to join it, on all nodes
  std::uint32_t spares_waiting;   // and that wait for a lost rank's place
  std::uint32_t evictions;        // ranks that were evicted while this service ran
  std::uint32_t reserved0;
  std::uint64_t encoded_gpu_bytes;  // of encoded_bytes: that GPUs encoded
  char name[64];
  char failure[256];  // why state is kFailed, what keeps its nodes from beginning, or who is slow
};

// A GPU that the service uses. Rows of GPUs stand at their ordinals.
struct GpuRow {
  std::uint32_t in_use;        // 0: free row
  std::uint32_t stream_words;  // 1: its streams write and await words themselves; 0: host calls do
  std::uint64_t memory_size;   // bytes it has
  std::uint64_t held_bytes;    // of segments that are mapped here, and of the service's scratch
  std::uint64_t segments;      // of clients that are mapped here
  std::uint32_t capability_major;
  std::uint32_t capability_minor;
  std::uint32_t mps;        // 1: processes use it at the same time
  std::uint32_t multicast;  // 1: it can be
  std::uint8_t uuid[16];
  char name[64];
};

struct RankRow {
  std::uint32_t job_id;  // 0: free row
  std::uint32_t rank;
  std::int32_t pid;
  std::uint32_t tensors;
  std::uint64_t segment_bytes;
  std::uint64_t operations_posted;
  std::uint64_t operations_ended;
  std::int64_t attached_ns;
  std::uint64_t bytes_posted;
  std::uint64_t last_posts;  // operations and gradients that it was the last of the node to post
  std::int64_t late_ns;      // sum over these: after the node's first rank
  std::int64_t waited_ns;    // sum: its forward passes stood still for gradients, as it says
};

struct QueueRow {
  // Within the job, from 1: number of the operation, or of the plan's block where there is an
  // iteration, or of the pair where the kind is a send or receive. 0: free row.
  std::uint64_t block;
  std::uint32_t job_id;
  std::uint32_t state;      // StageState
  std::uint32_t reason;     // WaitReason
  std::uint32_t iteration;  // of a block of the plan; 0: an operation of its own
  std::uint64_t wait_argument;
  std::uint64_t ranks_missing;  // bit r: rank r has not posted it (ranks 0..63)
  std::uint64_t bytes;          // of one rank's memory
  std::uint8_t kind;            // headrace::Collective
  std::uint8_t dtype;           // headrace::DType
  std::uint8_t stage;           // index of the hop, from 0
  std::uint8_t lane;            // row in the lane table
  std::uint32_t tensors;        // that it holds, in whole or in part; 0: memory without a name
  std::int64_t posted_ns;       // first post
  std::int64_t since_ns;        // when it came into this state
  char tensor[48];              // name of the first tensor, or empty
  char peer[32];                // kPeer: the node, "node-c", or "node-c +2" where there are more
  std::uint64_t tag;            // of a send or receive, as are the next two
  std::uint32_t source;         // rank; UINT32_MAX: any rank may be
  std::uint32_t target;
};

struct LaneRow {
  std::uint32_t in_use;
  std::uint32_t threads;
  std::uint64_t credit_bytes;  // bytes that may be in flight
  std::uint64_t in_flight_bytes;
  std::uint64_t in_flight_stages;
  std::uint64_t queued_stages;
  std::uint64_t stages_ended;
  std::uint64_t bytes_moved;
  // Time with at least one stage on the lane; between nodes, time in which something flowed, and
  // kTimeUnknown where the lane cannot tell that from waiting.
  std::int64_t busy_ns;
  std::uint64_t last_bytes;  // the last ended stage: bytes and time
  std::int64_t last_ns;
  // What a stage of n bytes costs here, going by those that ended: startup_ns + n / bytes_per_s.
  // 0 bytes_per_s: not known yet. Between nodes the bytes are those that one node sends.
  std::int64_t startup_ns;
  std::uint64_t bytes_per_s;
  std::uint64_t rate_bytes_per_s;  // moved in the second before rate_ns
  std::int64_t rate_ns;
  std::uint64_t messages_dropped;  // between nodes: of strangers, old epochs, other plans,
                                   // malformed, repeated
  char name[32];
  char transport[64];
};

// The plan of a job's gradients, and how the iterations under it went. Times of one iteration are
// measured from the begin of its backward pass.
struct PlanRow {
  std::uint32_t job_id;   // 0: free row
  std::uint32_t version;  // counts the job's plans; 0: none yet
  std::uint32_t tensors;
  std::uint32_t blocks;
  std::uint32_t barrier;        // 1: the forward pass waits for the last block
  std::uint32_t in_flight_max;  // blocks begun and not ended; 0: as many as lanes take
  std::uint64_t hash;           // equal on every node
  std::uint64_t bytes;          // of one rank's gradients
  std::uint64_t from_iteration;
  std::uint64_t iteration;       // the last that has ended
  std::uint32_t next_version;    // of a plan that waits for its iteration; 0: none
  std::uint32_t rows_left_out;   // blocks that found no free row
  std::uint64_t next_iteration;  // at which it is in force; 0: not agreed yet
  std::int64_t predicted_ns;     // of an iteration
  std::int64_t lower_bound_ns;   // no plan on these lanes is faster
  std::int64_t backward_ns;   // medians of the last iterations, slowest local rank: backward pass
  std::int64_t forward_ns;    // forward pass without its waits
  std::int64_t waited_ns;     // the forward pass stood still for communication
  std::int64_t measured_ns;   // from one backward pass to the next
  std::int64_t moving_ns;     // at least one block was on a lane
  std::int64_t elsewhere_ns;  // neither pass ran nor stood still: whatever else the loop does
  std::int64_t predicted_backward_ns;  // what the plan was made for
  std::int64_t predicted_forward_ns;
  // Sums over the iterations that have ended under plans of this job.
  std::uint64_t iterations_count;
  std::int64_t iterations_ns;
  std::int64_t iterations_waited_ns;
  std::int64_t iterations_moving_ns;
  // A block of n bytes takes predicted_startup_ns + n / predicted_bytes_per_s at the slowest stage.
  std::int64_t predicted_startup_ns;
  std::uint64_t predicted_bytes_per_s;
  char policy[16];
  // Where the prediction is the mean over recorded iterations; else 0 and empty.
  std::uint32_t recorded_iterations;
  std::uint32_t compressed_tensors;  // gradients of the plan that cross encoded
  std::int64_t predicted_p90_ns;     // nine of ten take at most that
  std::int64_t measured_mean_ns;     // of the last iterations, from one backward pass to the next
  std::int64_t measured_p90_ns;
  std::int64_t next_best_ns;  // mean of the best candidate of another policy; 0: none was tried
  char chosen[32];            // the candidate that was the fastest: policy, and how it was made
  char next_best[32];
  char codec[16];  // in which most of the compressed gradients cross between nodes; empty: none do
  // Whether codecs pay: which one was judged, empty: none was; and the iteration as predicted
  // without and with it. Where a codec is asked for, it is used all the same.
  char judged_codec[16];
  std::int64_t plain_ns;
  std::int64_t coded_ns;
  std::uint32_t codec_pays;  // 1: it does
  std::uint32_t reserved0;
};

// One block of a plan, in dispatch order.
struct PlanBlockRow {
  std::uint32_t job_id;  // 0: free row
  std::uint32_t index;   // from 0
  std::uint64_t bytes;
  std::uint32_t first_tensor;  // lowest and highest place in forward order inside
  std::uint32_t last_tensor;
  std::uint32_t parts;  // pieces of tensors that it holds
  std::uint32_t runs;   // pieces of memory
  std::int64_t predicted_begin_ns;
  std::int64_t predicted_end_ns;
  std::int64_t ready_ns;  // in the last iteration that has ended: all of its gradients posted
  std::int64_t begin_ns;  // first stage on its lane
  std::int64_t end_ns;    // last stage ended; 0: none yet
  char tensor[48];        // name of first_tensor
};

// What one job has of one lane. Written by dispatch.
struct ShareRow {
  std::uint32_t job_id;  // 0: free row
  std::uint32_t lane;    // row in the lane table
  std::uint64_t queued_stages;
  std::uint64_t in_flight_stages;
  std::uint64_t in_flight_bytes;
  std::uint64_t stages_ended;
  std::uint64_t bytes_moved;
  std::int64_t waiting_ns;  // sum: its stages stood in the queue
  std::int64_t moving_ns;   // sum: its stages were on the lane
};

// ---- The flight recorder: what the last blocks of each job did; written by dispatch. A job's
// place outlives the job until another one needs it, and the file outlives the service. ----

// Whose place it is.
struct FlightJobRow {
  std::uint32_t job_id;  // 0: free row
  std::uint32_t owner_uid;
  std::uint32_t world_size;
  std::uint32_t ranks_count;  // of this node
  std::int64_t opened_ns;
  std::int64_t opened_unix_ns;
  std::int64_t ended_ns;  // the job is over; 0: it lives
  std::uint64_t blocks;   // recorded; those before the last kFlightRowsMax are overwritten
  std::uint64_t passes;   // likewise, kPassRowsMax
  std::uint32_t ranks[kFlightRanksMax];  // this node's ranks, growing; the first of them
  char name[64];
};

// One stage of a block: times are microseconds after the row's `first_post_ns`; UINT32_MAX - 1:
// that or more.
struct FlightStage {
  std::uint8_t lane;
  std::uint8_t stage;  // 0 in the node, 1 between nodes, 2 to the node's ranks, 3 comparing
  std::uint16_t reserved0;
  std::uint32_t queued_us;
  std::uint32_t begin_us;  // UINT32_MAX: never
  std::uint32_t end_us;    // likewise
};

// One block that has ended, or an operation that ended before it was cut into blocks. A ring: row
// (number - 1) % kFlightRowsMax of its job.
struct FlightRow {
  std::uint64_t number;     // 1, 2, ...; 0: free row
  std::uint64_t operation;  // from 1, as in QueueRow::block
  std::uint64_t bytes;      // of one rank's memory
  std::int64_t first_post_ns;
  std::int64_t ended_ns;
  std::uint32_t iteration;    // of a block of the plan; 0: an operation of its own
  std::uint32_t block;        // within its operation, from 0
  std::uint32_t blocks;       // of its operation
  std::uint32_t last_rank;    // that posted it, of this node; UINT32_MAX: not all have
  std::uint32_t ready_us;     // after first_post_ns; UINT32_MAX: never
  std::uint8_t kind;          // headrace::Collective
  std::uint8_t dtype;         // headrace::DType
  std::uint8_t code;          // headrace::Code; 0: it ended well
  std::uint8_t stages_count;  // may be more than there are rows of stages
  std::uint32_t tensors;
  std::uint16_t codec;  // in which it crossed between nodes: kind, and the parameter 8 bits higher
  std::uint16_t coded_on;  // by which processor: 0: the host; else one more than the GPU
  // What its encoded messages to other nodes took; 0 where it crossed as it is.
  std::uint64_t sent_bytes;
  std::uint32_t encode_us;
  std::uint32_t decode_us;
  // When each of the job's `ranks` posted it (of a plan's block: the last gradient in it), in
  // microseconds after first_post_ns; UINT32_MAX: it has not, UINT32_MAX - 1: that or more.
  std::uint32_t posted_us[kFlightRanksMax];
  FlightStage stages[kFlightStagesMax];
  char tensor[48];  // name of the first tensor, or empty
};

// Why a block failed, beside its row: at the same place of a ring of its own.
struct FlightCauseRow {
  std::uint64_t number;  // of the block; 0: free row
  char text[504];
};

// How a job ended, beside its FlightJobRow.
struct FlightEndRow {
  std::uint32_t job_id;  // 0: free row
  std::uint32_t code;    // headrace::Code; 0: it ended well
  char cause[504];       // why it failed
};

// One iteration of one local rank. A ring: row (number - 1) % kPassRowsMax of its job.
struct PassRow {
  std::uint64_t number;  // 1, 2, ...; 0: free row
  std::uint64_t iteration;
  std::uint32_t rank;
  std::uint32_t reserved0;
  std::int64_t begin_ns;     // of the backward pass
  std::int64_t backward_ns;  // until its last gradient was posted
  std::int64_t forward_ns;   // of the forward pass before it, without waits
  std::int64_t waited_ns;    // that this forward pass stood still
};

// A ring: row (number - 1) % kEventRowsMax. Written by the watch actor.
struct EventRow {
  std::uint64_t number;  // 1, 2, ...; 0: free row
  std::int64_t at_unix_ns;
  std::uint32_t code;  // headrace::Code
  std::uint32_t job_id;
  char text[256];
};

// The service's own log. Written under the log's lock, by whoever logs.
struct LogRow {
  std::uint64_t lines_dropped;  // since the service started: nobody read them in time
  std::int64_t last_drop_ns;    // 0: none was
};

// With what certificate the service meets others. Written by whoever meets them. Times are seconds
// since 1970.
struct CertificateRow {
  std::uint32_t in_use;  // 0: it has none
  std::uint32_t reserved0;
  std::int64_t loaded_unix_s;
  std::int64_t until_unix_s;            // of this node's certificate
  std::int64_t authority_until_unix_s;  // of those that signed it
  std::int64_t warn_from_unix_s;        // from when on the log warns of its end daily
  char refused[256];  // why files that have changed since are not in use; empty: they are
};

// A service of another node that this one is connected to or knows of. Written by whoever
// meets them.
struct PeerRow {
  std::uint32_t in_use;          // 0: free row
  std::uint32_t connected;       // 1: both have said hello
  std::uint32_t leads;           // 1: this service takes part in its jobs; 0: it takes part in ours
  std::uint32_t needed;          // 1: it is connected, or a job waits for it
  std::int64_t round_trip_ns;    // the best of the last few; -1: none yet
  std::int64_t clock_offset_ns;  // its clock less this node's, within half of the round trip
  char name[64];                 // of its node; empty while it has not said it
  char address[96];
  std::uint64_t resumes;     // times that its connection broke and another took its place
  std::int64_t unlinked_ns;  // without a connection that answered, until each of them did
};

// What one uid has of this service, and may have; 0 as a limit: there is none. Written by rpc,
// at most ten times a second.
struct UserRow {
  std::uint32_t in_use;  // 0: free row
  std::uint32_t uid;
  std::uint64_t connections;
  std::uint64_t connections_max;
  std::uint64_t connections_cut;  // that went beyond their bounds, since it came
  std::uint64_t sessions;
  std::uint64_t sessions_max;
  std::uint64_t jobs;
  std::uint64_t jobs_max;
  std::uint64_t memory_bytes;  // of segments, of the host and of GPUs
  std::uint64_t memory_max;
  std::uint64_t operations_max;  // open ones; how many there are stands with its jobs
};

// A job of other nodes that this service sums for, as a parameter server. Written by peers.
struct ServedRow {
  std::uint32_t in_use;  // 0: free row
  std::uint32_t world_size;
  std::uint64_t encoded_bytes;        // of sums that it encoded for the nodes, had it not
  std::uint64_t kept_bytes;           // of its memory, for what that left out
  std::uint64_t residual_millionths;  // norm of what was left out over that of the sums, lately
  char job[64];
  char leader[64];  // the address of the service that leads it
};

// A row with its version word. The size is a multiple of 8, copied in 8-byte words.
template <typename Row>
struct BoardSlot {
  static_assert(std::is_trivially_copyable_v<Row> && sizeof(Row) % 8 == 0);
  std::atomic<std::uint64_t> version;
  Row row;
};

struct BoardLayout {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t reserved0;
  std::uint64_t size;
  BoardSlot<ServiceRow> service;
  BoardSlot<CountersRow> counters;
  BoardSlot<JobRow> jobs[kJobRowsMax];
  BoardSlot<RankRow> ranks[kRankRowsMax];
  BoardSlot<QueueRow> queue[kQueueRowsMax];
  BoardSlot<LaneRow> lanes[kLaneRowsMax];
  BoardSlot<EventRow> events[kEventRowsMax];
  BoardSlot<PlanRow> plans[kPlanRowsMax];
  BoardSlot<PlanBlockRow> plan_blocks[kPlanBlockRowsMax];
  BoardSlot<ShareRow> shares[kShareRowsMax];
  BoardSlot<FlightJobRow> flight_jobs[kFlightJobsMax];
  BoardSlot<FlightRow> flights[kFlightJobsMax][kFlightRowsMax];
  BoardSlot<PassRow> passes[kFlightJobsMax][kPassRowsMax];
  BoardSlot<GpuRow> gpus[kGpuRowsMax];
  BoardSlot<LogRow> log;
  BoardSlot<CertificateRow> certificate;
  BoardSlot<FlightCauseRow> flight_causes[kFlightJobsMax][kFlightRowsMax];
  BoardSlot<FlightEndRow> flight_ends[kFlightJobsMax];
  BoardSlot<PeerRow> peers[kPeerRowsMax];
  BoardSlot<UserRow> users[kUserRowsMax];
  BoardSlot<ServedRow> served[kServedRowsMax];
};
static_assert(sizeof(ServiceRow) == 368 && sizeof(CountersRow) == 256 && sizeof(JobRow) == 832);
static_assert(sizeof(UserRow) == 88);
static_assert(sizeof(GpuRow) == 128 && sizeof(LogRow) == 16 && sizeof(CertificateRow) == 296);
static_assert(sizeof(RankRow) == 80 && sizeof(QueueRow) == 168 && sizeof(LaneRow) == 216);
static_assert(sizeof(EventRow) == 280 && sizeof(PlanRow) == 376 && sizeof(PlanBlockRow) == 120);
static_assert(sizeof(ShareRow) == 64 && sizeof(FlightJobRow) == 184 && sizeof(PassRow) == 56);
static_assert(sizeof(FlightStage) == 16 && sizeof(FlightRow) == 296);
static_assert(sizeof(FlightCauseRow) == 512 && sizeof(FlightEndRow) == 512);
static_assert(sizeof(PeerRow) == 208 && sizeof(ServedRow) == 160);

}  // namespace headrace::ipc
