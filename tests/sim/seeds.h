// Which seeds a simulation runs, and how a failure or a crash tells the one that was running.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace headrace::sim {

struct Seeds {
  std::uint64_t first = 1;
  std::uint64_t last = 1;

  bool IsOne() const { return first == last; }
};

// --seed=SEED, --seeds=COUNT, else HEADRACE_SIM_SEED, else `usual` seeds from 1. False, with a text
// on standard error, when an argument makes no sense. To be called once; Wanted gives the answer.
bool ReadSeeds(int count, char** arguments, std::uint64_t usual);
Seeds Wanted();

// From here on a crash tells the seed that was running.
void TellTheSeedOfACrash();
void NowRuns(std::uint64_t seed, const char* mood);
// For a failure: which seed it was, how to replay it, and, if it was replayed, its last actions.
std::string HowToReplay(std::uint64_t seed, const char* mood,
                        const std::vector<std::string>& trace);

}  // namespace headrace::sim
