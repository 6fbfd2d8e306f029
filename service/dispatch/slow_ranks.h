// Finds the ranks of a job that are slow for longer than the job's bound, names them, and has them
// evicted where the job says so.
//
// A rank's own time is the time in which it has not waited for the service, by the counter that its
// client keeps in the channel. It is a duration on one clock, so ranks of all nodes can be
// compared: a rank that waits little while the others wait long is the one they wait for, whatever
// operations they use. Each node reports, about once a second or less often, which share of the
// time was each of its ranks' own (OwnShare). The shares are compared in one place, where rank 0
// is, once all ranks have one: a round. A rank is slow in a round when its own time is kSlowPercent
// of the median of the others', or more, and kExcessMin of the time longer; it is named when it was
// slow in each round for as long as the bound, and in at least kRoundsMin. So a single long
// iteration, of a rank that compiles or writes a checkpoint, names no rank. For as long as the
// bound after a job's start, nothing counts.
//
// A rank that stands still ends no round, and posts nothing that would be noticed here. So each
// node also checks its ranks by a timer: a rank that for as long as the bound has posted nothing,
// had no operation end and reported no wait either waits for others (it has posted an open
// operation), or is stalled. The node reports which (RankState), and when that is over. Where rank
// 0 is, a stalled rank is named when all ranks wait or are stalled, and at least one waits.
//
// SlowRank goes to all nodes. An eviction is that of `headracectl evict`: at most one in an epoch,
// of the slowest rank, or of the one that has stood still for longest, never below the job's
// minimum world size, nor while the job is paused or drained. A slow rank stays while a plan is
// being agreed on; with one that stands still the agreement might never end.
//
// Owned and called by dispatch, on its thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "service/actor/outgoing.h"
#include "service/dispatch/job/job.h"
#include "service/dispatch/observe/events.h"
#include "service/peers/messages.h"
#include "service/watch/board_writer.h"

namespace headrace::service {

class SlowRanks {
 public:
  static constexpr std::uint32_t kSlowPercent = 150;
  static constexpr std::uint32_t kExcessMin = OwnShare::kWhole / 10;
  static constexpr std::uint32_t kRoundsMin = 4;
  static constexpr TimeNs kWindowMin = kSecond;

  // All outlive it.
  SlowRanks(Outgoing<PeersMessage>& peers, JobEvents& events, BoardWriter& board)
      : peers_(peers), events_(events), board_(board) {}

  // After each record of the rank, which is attached.
  void OnRecord(Job& job, std::uint32_t rank, TimeNs now) {
    if (job.slow.bound.seconds != 0) Measure(job, rank, now);
  }
  // At next_check(), or later: looks for ranks that stand still. Returns whether that was due.
  bool Check(const Jobs& jobs, TimeNs now);
  TimeNs next_check() const { return next_check_; }
  // The service stood still for so long: what its ranks have not done meanwhile does not count.
  static void Postpone(const Jobs& jobs, TimeNs by_ns);
  // Steering of one of the four kinds, of which `value` is checked. Says why the rank that a
  // SlowRank names is to be evicted, if it is.
  struct Eviction {
    std::uint32_t rank = 0;
    std::string cause;
  };
  std::optional<Eviction> Handle(Job& job, const Steering& steering, TimeNs now);

 private:
  static TimeNs WindowOf(const SlowBound& bound);
  void SetBound(Job& job, const SlowBound& bound, TimeNs now);
  // Warns of a job that evicts and whose operations would time out before.
  void CompareWithTimeout(const Job& job);
  void Measure(Job& job, std::uint32_t rank, TimeNs now);
  void OnOwnShare(Job& job, const OwnShare& own, TimeNs now);
  // All ranks have said a share.
  void EndRound(Job& job, TimeNs now);
  static std::uint32_t MedianOfOthers(const SlowRanksState& slow, std::uint32_t rank);
  static bool MayEvict(const Job& job);
  // The rank was named before.
  void HaveEvicted(Job& job, SlowRank slow);
  // ---- ranks that stand still ----
  void CheckAgainAt(Job& job, TimeNs next_ns);
  void CheckJob(Job& job, TimeNs now);
  // Returns whether anything but a record of the rank can change what it does.
  bool CheckRank(Job& job, std::uint32_t rank, bool counts, TimeNs now);
  static bool Waits(const Job& job, std::uint32_t rank);
  void ReportState(Job& job, std::uint32_t rank, RankState::Kind kind, TimeNs now);
  void OnRankState(Job& job, const RankState& state, TimeNs now);
  void FindStalled(Job& job, TimeNs now);
  // ---- naming ----
  // To all nodes of the job, this one included.
  void ReportSlowRank(const Job& job, const SlowRank& slow);
  std::optional<Eviction> OnSlowRank(Job& job, const SlowRank& slow);

  Outgoing<PeersMessage>& peers_;
  JobEvents& events_;
  BoardWriter& board_;
  TimeNs next_check_ = kNever;
};

}  // namespace headrace::service
