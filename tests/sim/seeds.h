// Which seeds a simulation runs, and how a failure or a crash tells the one that was running.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ipc/base/clock.h"

namespace headrace::sim {

// Reads --seed=SEED, --seeds=COUNT, --minutes=MINUTES and HEADRACE_SIM_SEED. Without them a walk
// has `usual` seeds from 1, and new ones for a few seconds. False, with a text on standard error,
// when an argument makes no sense. To be called once.
bool ReadSeeds(int count, char** arguments, std::uint64_t usual);

// The seeds of one mood: the fixed ones, then new ones from a random start, which it prints, for as
// long as there is time. At its end it prints how many it had.
class SeedWalk {
 public:
  // `walks_count` walks share the minutes that were asked for. Where none were, it has at least
  // `new_least` new seeds.
  SeedWalk(const char* mood, int walks_count, std::uint64_t new_least = 0);
  ~SeedWalk();
  SeedWalk(const SeedWalk&) = delete;
  SeedWalk& operator=(const SeedWalk&) = delete;

  // The next seed, which is what a crash names from now on; nothing when the walk is over.
  std::optional<std::uint64_t> Next();
  std::uint64_t count() const { return fixed_ + new_; }
  // A seed that was asked for by its number.
  bool IsOne() const;

 private:
  const char* mood_;
  TimeNs began_ns_;
  TimeNs exploration_ns_;
  std::uint64_t new_least_;
  TimeNs exploring_since_ns_ = 0;
  std::uint64_t first_new_ = 0;
  std::uint64_t fixed_ = 0;
  std::uint64_t new_ = 0;
};

// From here on a crash tells the seed that was running.
void TellTheSeedOfACrash();
// For a failure: which seed it was, how to replay it, and, if it was replayed, its last actions.
std::string HowToReplay(std::uint64_t seed, const char* mood,
                        const std::vector<std::string>& trace);

}  // namespace headrace::sim
