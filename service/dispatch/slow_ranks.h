// Finds the ranks of a job that are slow for longer than the job's bound, names them, and has them
// evicted where the job says so.
//
// A rank's own time is what it has not waited for the service, by the word that its client counts
// in the channel. It is a duration on one clock, so ranks of all nodes compare: who waits little
// where the others wait long is whom they wait for, whatever operations they use. Each node says,
// about once a second or less often, what share of the time was each of its ranks' own (OwnShare).
// They are compared in one place, where rank 0 is, once all ranks have said one: a round. A rank is
// slow in a round when its own time is kSlowPercent of the median of the others', or more, and
// kExcessMin of the time longer; it is named when it was so in each round for as long as the bound
// says, and in kRoundsMin. So one iteration that takes long, of a rank that compiles or writes a
// checkpoint, names nobody. As long as the bound is, too, after a job's begin nothing counts.
//
// SlowRank goes to all nodes. An eviction is that of `headracectl evict`: one in the life of an
// epoch, of the slowest, never below the least world that the job sets, and not while a plan is
// being agreed on, nor while the job is paused or drained.
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
  // Steering of one of the three kinds, of which `value` is checked. Says why the rank that a
  // SlowRank names is to be evicted, if it is.
  struct Eviction {
    std::uint32_t rank = 0;
    std::string cause;
  };
  std::optional<Eviction> Handle(Job& job, const Steering& steering, TimeNs now);

 private:
  static TimeNs WindowOf(const SlowBound& bound);
  static void SetBound(Job& job, const SlowBound& bound);
  void Measure(Job& job, std::uint32_t rank, TimeNs now);
  void OnOwnShare(Job& job, const OwnShare& own, TimeNs now);
  // All ranks have said a share.
  void EndRound(Job& job, TimeNs now);
  static std::uint32_t MedianOfOthers(const SlowRanksState& slow, std::uint32_t rank);
  static bool MayEvict(const Job& job);
  // To all nodes of the job, this one included.
  void ReportSlowRank(const Job& job, const SlowRank& slow);
  std::optional<Eviction> OnSlowRank(Job& job, const SlowRank& slow);

  Outgoing<PeersMessage>& peers_;
  JobEvents& events_;
  BoardWriter& board_;
};

}  // namespace headrace::service
