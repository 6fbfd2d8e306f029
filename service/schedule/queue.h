// The unified queue: the block stages of all jobs that wait for a lane, the credits that limit the
// bytes that a job has in flight on a lane, and the share of the lane that each job gets. A stage
// that goes over several rails is queued once for each rail, with that rail's share of its bytes.
//
// A job has five traffic classes: operations that sum, in the order of their posts; operations that
// only copy; blocks of the plan; pairs (sends with their receives); and receives of sends of other
// nodes. The last have credit of their own: otherwise two nodes full of receives would wait for
// each other's sends. On one lane the stages of a class run strictly by position. Pairs and
// receives go first, then copies, because the next computation needs them. Sums go last, because
// they can overlap with computation. Among equals, the class whose head has waited longest goes.
// Credits are per class and lane, so a class that is blocked never holds the credit of another. A
// stage that is larger than the credit runs when its class has nothing in flight. The number of
// stages in flight is limited, too: to kInFlightStagesMax for operations and to the plan's number
// for its blocks.
//
// Among jobs, the higher priority goes first. Jobs of one priority share a lane by weight:
// the job with the fewest weighted bytes so far, over all of its classes, goes next. A job that was
// idle or limited does not save up turns. A job whose weight changes keeps its place. A head that
// could run and was passed over for kWaitMaxNs goes once before heads of higher rank, among jobs
// and among the classes of a job, so that nothing starves.
//
// A lane runs its stages in its own order, so only waiting stages are shared. On a lane whose
// stages never wait for another node, all jobs together therefore have two stages in flight, one
// that runs and the next one, or more if they are small. A lane between nodes must not have a limit
// for all jobs together: two nodes could fill it with stages of different jobs, and each would wait
// for a stage for which the other has no room. There the exchange shares the network among all
// stages in flight, piece by piece.
//
// Pure: no clock, thread or atomic. Used by dispatch on its thread, and by simulations. Allocates
// nothing after AddJob.
#pragma once

#include <algorithm>
#include <array>
#include <boost/circular_buffer.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/ids.h"
#include "ipc/base/steering.h"
#include "service/schedule/rate_limit.h"

namespace headrace::schedule {

inline constexpr std::size_t kStagesMax = 1024;  // waiting stages per job and lane
// Limit of stages in flight per class and lane, because many tiny stages must not fill a lane.
inline constexpr std::uint64_t kInFlightStagesMax = 32;
// Limits of stages in flight of all jobs on a lane whose stages wait for no other node: two stages,
// or more while they are together not larger than kOwnPaceBytesMax. A node sums that much in about
// 0.1 ms, so that a job waits at most twice that time for stages picked before it, and the lane
// stays busy while dispatch reads the next records.
inline constexpr std::uint64_t kOwnPaceStagesMax = 2;
inline constexpr std::uint64_t kOwnPaceBytesMax = std::uint64_t{1} << 20;
// The longest time for which a head that could run is passed over.
inline constexpr TimeNs kWaitMaxNs = kSecond;

enum class TrafficClass : std::uint8_t { kPosted, kPlanned, kPaired, kReceived, kCopied };
inline constexpr std::size_t kTrafficClassesCount = 5;
constexpr bool IsOfPairs(TrafficClass traffic_class) {
  return traffic_class == TrafficClass::kPaired || traffic_class == TrafficClass::kReceived;
}
// Among the classes of one job, the one with the larger number goes first.
constexpr int UrgencyOf(TrafficClass traffic_class) {
  if (IsOfPairs(traffic_class)) return 2;
  return traffic_class == TrafficClass::kCopied ? 1 : 0;
}

// One lane's share of a block's stage.
struct QueuedStage {
  std::uint64_t token = 0;     // the caller's name for it
  std::uint64_t position = 0;  // place in the job's plan; grows in dispatch order
  JobId job;
  TrafficClass traffic_class = TrafficClass::kPosted;
  std::uint8_t lane = 0;
  std::uint64_t bytes = 0;
  std::uint64_t wire_bytes = 0;  // that this node sends for it: what a job's limit counts
};

struct JobShare {
  std::uint32_t weight = 1;             // at least 1
  std::uint32_t priority = 0;           // up to kPriorityMax; larger goes first
  std::uint64_t limit_bytes_per_s = 0;  // on each lane; 0: none
  bool by_urgency = true;               // its classes go by UrgencyOf, or all in turn

  friend bool operator==(const JobShare&, const JobShare&) = default;
};

// Why a stage that waits is not picked now.
struct Wait {
  enum class Reason : std::uint8_t {
    kNone,
    kBehindStage,
    kNoCredit,  // bytes
    kBehindJob,
    kRateLimit,
    kInFlight,  // stages: as many of the class are on the lane as may be
    kLaneFull,  // of all jobs
  };
  Reason reason = Reason::kNone;
  // Position (kBehindStage), job id (kBehindJob), nanoseconds until it may go (kRateLimit), stages
  // (kInFlight).
  std::uint64_t argument = 0;
};

// What a lane lets in.
struct LaneTerms {
  // From `credit` alone: a lane between nodes.
  LaneTerms(std::uint64_t credit, bool own = false) : credit_bytes(credit), own_pace(own) {}

  std::uint64_t credit_bytes;  // that a job may have in flight on it
  bool own_pace;               // its stages never wait for anybody else
};

class UnifiedQueue {
 public:
  explicit UnifiedQueue(const std::vector<LaneTerms>& lanes);

  void AddJob(JobId job, const JobShare& share);
  // The job must have nothing waiting and nothing in flight.
  void RemoveJob(JobId job);
  void SetShare(JobId job, const JobShare& share, TimeNs now);
  // How many of the planned class may be in flight on each lane, from now on; 1 to begin with. A
  // lane of its own pace takes two in any case, or a job of one at a time could not have more than
  // every other turn.
  void SetPlannedInFlightMax(JobId job, std::uint64_t stages_max);

  // Returns what stands before it: kBehindStage if its class has a stage waiting on the lane.
  Wait Push(const QueuedStage& stage);

  // The stage that goes next on `lane`, with its credit taken; nothing when no stage may go.
  std::optional<QueuedStage> Pick(std::uint8_t lane, TimeNs now);
  // When a stage that only waits for its job's limit may go; kNever when there is none. As of the
  // last Pick that gave nothing.
  TimeNs NextTime(std::uint8_t lane) const { return lanes_[lane].next_time; }
  // Gives the credit of a picked stage back.
  void Return(const QueuedStage& stage);
  // Takes a waiting stage out; false when it is not waiting.
  bool Remove(const QueuedStage& stage);

  // The first waiting stage of the class on the lane; nothing when none waits.
  std::optional<QueuedStage> Head(JobId job, TrafficClass traffic_class, std::uint8_t lane) const;
  // All heads on the lane, and why each is not picked now; kNone if it would be. Valid until the
  // next call for any lane.
  struct HeadWaits {
    QueuedStage stage;
    Wait wait;
  };
  std::span<const HeadWaits> ExplainHeads(std::uint8_t lane, TimeNs now);

  std::size_t Waiting(std::uint8_t lane) const { return lanes_[lane].waiting_stages; }

 private:
  static constexpr std::size_t kClassesMax = kPriorityMax + 1;

  struct Line {                                        // one class of a job on one lane
    std::uint64_t in_flight_max = kInFlightStagesMax;  // stages
    std::uint64_t in_flight_bytes = 0;
    std::uint64_t in_flight_stages = 0;
    std::uint64_t head_number = 0;   // grows with each stage that comes to a line's head
    TimeNs passed_over_ns = kNever;  // since when it could go and another line of its job went
    boost::circular_buffer<QueuedStage> waiting;
  };
  struct Entry {  // a job on one lane
    JobId job;
    std::uint32_t weight = 1;
    std::uint32_t priority = 0;
    bool by_urgency = true;
    bool held_back = false;          // by its limit, when it was last looked at
    double served = 0;               // weighted bytes; comparable within one lane and class
    TimeNs passed_over_ns = kNever;  // since when it could go and others went
    std::size_t waiting_place = 0;   // in Lane::waiting, when something waits
    RateLimit limit;
    std::array<Line, kTrafficClassesCount> lines;

    int UrgencyOf(const Line& line) const {
      return by_urgency ? schedule::UrgencyOf(static_cast<TrafficClass>(&line - lines.data())) : 0;
    }
    bool waits() const {
      return std::ranges::any_of(lines, [](const Line& line) { return !line.waiting.empty(); });
    }
    bool active() const {
      return waits() || std::ranges::any_of(
                            lines, [](const Line& line) { return line.in_flight_stages != 0; });
    }
  };
  // What has been served within a class, for those who come late.
  struct Clock {
    double now = 0;  // what who went last had had before
    double latest = 0;
    std::size_t active = 0;
  };
  struct Lane {
    LaneTerms terms;
    std::vector<Entry*> waiting;  // those of jobs_ with a stage that waits
    std::array<Clock, kClassesMax> clocks{};
    std::size_t waiting_stages = 0;
    std::uint64_t in_flight_bytes = 0;
    std::uint64_t in_flight_stages = 0;
    TimeNs next_time = kNever;
  };
  struct Job {
    JobId id;
    std::vector<Entry> entries;  // by lane
  };

  Job* FindJob(JobId job) const;
  Entry& EntryOf(const QueuedStage& stage);
  static bool HasCredit(const Lane& lane, const Line& line);
  static bool Precedes(const Entry& a, const Entry& b);
  // The line whose head goes, if the job's turn comes; null when none may.
  static Line* TurnOf(const Lane& lane, Entry& entry, TimeNs now);
  static bool Precedes(const Entry& entry, const Line& a, const Line& b, TimeNs now);
  // The line's head goes now, and those of the job's others that could go do not.
  static void NotePassedOver(const Lane& lane, Entry& entry, Line& line, TimeNs now);
  // The job that goes next, however full the lane is; null when none may.
  struct Turn {
    Entry* entry = nullptr;
    Line* line = nullptr;
    bool overdue = false;  // it was passed over for too long, and goes before its betters
  };
  static Turn Next(Lane& lane, TimeNs now);
  static bool HasRoom(const Lane& lane, const QueuedStage& stage);
  static Wait WhyWaits(const Lane& lane, const Entry& entry, const Line& line, const Entry* next,
                       TimeNs now);
  // A stage came to the head of the line.
  void NumberHead(Line& line) { line.head_number = ++heads_; }
  // A stage that waited in the line does not any more.
  void TookOut(Lane& lane, Entry& entry, Line& line);
  static void Activate(Lane& lane, Entry& entry);
  static void Deactivate(Lane& lane, std::uint32_t priority);

  std::vector<Lane> lanes_;
  std::vector<std::unique_ptr<Job>> jobs_;  // by id; lanes point into them
  std::uint64_t heads_ = 0;
  std::vector<HeadWaits> explained_;
};

}  // namespace headrace::schedule
