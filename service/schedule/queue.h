// The unified queue: block stages of all jobs that wait for a lane, and the credits that limit how
// many bytes a job may have in flight there.
//
// A job has two orders: its operations as they were posted, and the blocks of its plan. Rules: on
// one lane the stages of an order go strictly by their positions; among jobs the higher priority
// class goes first, and within a class lanes are shared by weight (the order that has had the
// fewest weighted bytes goes next). Credits are per order and lane, so one that cannot go on never
// holds another's. A stage larger than the credit goes when its order has nothing in flight, and
// an order has at most so many stages in flight, however small: kInFlightStagesMax of operations,
// as many as the plan says of its blocks.
//
// Pure: no clock, thread or atomic; driven by dispatch and by the simulation alike. After AddJob
// nothing is allocated.
#pragma once

#include <boost/circular_buffer.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ipc/base/ids.h"

namespace headrace::schedule {

inline constexpr std::size_t kStagesMax = 1024;  // that wait, per job and lane
// That are in flight, per order and lane: tiny stages must not fill a lane by their number.
inline constexpr std::uint64_t kInFlightStagesMax = 32;

enum class Order : std::uint8_t { kPosted, kPlanned };

struct Stage {
  std::uint64_t token = 0;     // the caller's name for it
  std::uint64_t position = 0;  // place in the job's plan; grows in dispatch order
  JobId job;
  Order order = Order::kPosted;
  std::uint8_t lane = 0;
  std::uint64_t bytes = 0;
};

struct JobShare {
  std::uint32_t weight = 1;             // at least 1
  std::uint32_t priority = 0;           // class; larger goes first
  std::uint64_t limit_bytes_per_s = 0;  // on each lane; 0: none

  friend bool operator==(const JobShare&, const JobShare&) = default;
};

// Why a stage that waits is not picked now.
struct Wait {
  enum class Reason : std::uint8_t { kNone, kBehindStage, kNoCredit, kBehindJob };
  Reason reason = Reason::kNone;
  std::uint64_t argument = 0;  // position (kBehindStage) or job id (kBehindJob)
};

class UnifiedQueue {
 public:
  // One entry a lane: the bytes a job may have in flight on it.
  explicit UnifiedQueue(std::vector<std::uint64_t> credit_bytes_by_lane);

  void AddJob(JobId job, JobShare share);
  // The job must have nothing waiting and nothing in flight.
  void RemoveJob(JobId job);
  // How many of the planned order may be in flight on each lane, from now on; 1 to begin with.
  void SetPlannedInFlightMax(JobId job, std::uint64_t stages_max);

  // Returns what stands before it: kBehindStage if its order has a stage waiting on the lane.
  Wait Push(const Stage& stage);

  // The stage that goes next on `lane`, with its credit taken; nothing when no stage may go.
  std::optional<Stage> Pick(std::uint8_t lane);
  // Gives the credit of a picked stage back.
  void Return(const Stage& stage);
  // Takes a waiting stage out; false when it is not waiting.
  bool Remove(const Stage& stage);

  // The order's first waiting stage on the lane; nothing when none waits.
  std::optional<Stage> Head(JobId job, Order order, std::uint8_t lane) const;
  // Why that head is not picked now; kNone if it would be.
  Wait WhyHeadWaits(JobId job, Order order, std::uint8_t lane) const;

  std::size_t Waiting(std::uint8_t lane) const;
  std::uint64_t InFlightBytes(std::uint8_t lane) const;

 private:
  struct Line {  // one order of a job on one lane
    JobId job;
    Order order = Order::kPosted;
    std::uint64_t in_flight_max = kInFlightStagesMax;  // stages
    JobShare share;
    boost::circular_buffer<Stage> waiting;
    std::uint64_t in_flight_bytes = 0;
    std::uint64_t in_flight_stages = 0;
    double served = 0;  // weighted bytes; comparable among lines of one lane and class

    bool active() const { return !waiting.empty() || in_flight_stages != 0; }
  };
  struct Lane {
    std::uint64_t credit_bytes = 0;
    std::vector<Line> lines;
  };

  Line* FindLine(JobId job, Order order, std::uint8_t lane);
  const Line* FindLine(JobId job, Order order, std::uint8_t lane) const;
  static bool HasCredit(const Lane& lane, const Line& line);
  static bool GoesBefore(const Line& a, const Line& b);
  // Where a line that was idle starts: beside the others of its class, not before them.
  static double StartOf(const Lane& lane, const Line& idle);
  // The line that goes next; null when none may.
  static const Line* NextLine(const Lane& lane);

  std::vector<Lane> lanes_;
};

}  // namespace headrace::schedule
