// The state of a job for finding slow ranks: plain data inside Job, changed by slow_ranks.h only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ipc/base/clock.h"
#include "service/dispatch/job/posts.h"
#include "service/session/slow_rank.h"

namespace headrace::service {

// The time over which one rank of this node is looked at.
struct OwnWindow {
  TimeNs begin_ns = 0;          // 0: it has none yet
  std::uint64_t waited_ns = 0;  // that the rank had said then
  std::uint64_t last_waited_ns = 0;
};

// For how long a rank has been slow, without a break.
struct SlowStreak {
  std::uint32_t rounds = 0;
  TimeNs since_ns = 0;
  std::uint64_t own = 0;     // sum of its shares
  std::uint64_t others = 0;  // sum of the medians of the others' shares
  bool named = false;
};

// What a rank of this node has done so far, and since when it has done nothing more.
struct RankActivity {
  std::uint64_t posted = 0;
  std::uint64_t ended = 0;
  std::uint64_t waited_ns = 0;
  TimeNs since_ns = 0;  // 0: it was not looked at yet
  RankState::Kind said = RankState::Kind::kActive;
};

struct SlowRanksState {
  SlowBound bound;
  TimeNs counts_from_ns = 0;       // windows begin from then on; 0: not known yet
  std::vector<OwnWindow> windows;  // by rank
  // On the node of rank 0, by rank: what all ranks have said, and who has since the last round.
  std::vector<std::uint32_t> shares;
  RankMask told = 0;
  std::vector<SlowStreak> streaks;
  // Ranks that stand still. `activities`, by rank, and the time of the next look are of this node's
  // ranks; what all ranks do, by rank, and who of them was named, of the node of rank 0.
  std::vector<RankActivity> activities;
  TimeNs next_check_ns = kNever;
  struct Known {
    RankState::Kind kind = RankState::Kind::kActive;
    TimeNs since_ns = 0;
  };
  std::vector<Known> states;
  RankMask stalled = 0;
  bool evicting = false;  // the job is about to fail
  // For people, on every node: who is slow.
  RankMask slow = 0;
  std::string text;
};

}  // namespace headrace::service
