#include "client/cli/replay/run.h"

#include <fmt/format.h>

#include <thread>
#include <utility>

namespace headrace::replay {
namespace {

// The service does not write the rows of every iteration, nor in a hurry.
constexpr TimeNs kBoardPatience = 100 * kMillisecond;
constexpr TimeNs kBoardPause = 5 * kMillisecond;

struct Outcome {
  std::optional<Played> played;
  std::optional<Error> error;
  TimeNs failed_ns = 0;
};

// As it stands once the board shows iteration `last`, or has had some time for it.
Ending ReadEnding(const PlanWatch& watch, std::uint64_t last) {
  Ending ending;
  const TimeNs deadline = MonotonicNow() + kBoardPatience;
  for (;;) {
    ending.plan = watch.Plan();
    const bool is_there = ending.plan && ending.plan->iteration >= last;
    if (is_there || MonotonicNow() >= deadline) break;
    SleepUntil(MonotonicNow() + kBoardPause);
  }
  ending.blocks = watch.Blocks();
  ending.lanes = watch.Lanes();
  return ending;
}

Result<Played> PlayRank(const Score& score, const Place& place, const std::string& board_path) {
  Result<Rank> seat = Rank::Attach(place, score.profile);
  if (!seat) return seat.error();
  const Result<PlanWatch> watch = PlanWatch::Open(board_path, place.job);
  if (!watch) return watch.error();
  Player player(*seat, *watch, score, place.rank, place.world_size);
  Result<Performance> performance = player.Play();
  if (!performance) return performance.error();
  Played played{place.rank, std::move(performance).value(), {}};
  played.ending =
      ReadEnding(*watch, played.performance.warmup + played.performance.iterations.size());
  // The job's rows go with its first rank: nobody leaves before all have read them.
  const Result<bool> all_have_read = seat->AllAgree(true);
  if (!all_have_read) return all_have_read.error();
  return played;
}

}  // namespace

Result<std::vector<Played>> PlayRanks(const Score& score, const std::vector<Place>& places,
                                      const std::vector<std::string>& board_paths) {
  std::vector<Outcome> outcomes(places.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < places.size(); ++i) {
    threads.emplace_back(
        [&score, &place = places[i], &board = board_paths[i], &outcome = outcomes[i]] {
          Result<Played> played = PlayRank(score, place, board);
          if (played) {
            outcome.played = std::move(played).value();
          } else {
            outcome.error = played.error().Within(fmt::format("rank {}", place.rank));
            outcome.failed_ns = MonotonicNow();
          }
        });
  }
  for (std::thread& thread : threads) thread.join();
  const Outcome* first_failure = nullptr;
  for (const Outcome& outcome : outcomes) {
    if (!outcome.error) continue;
    if (first_failure == nullptr || outcome.failed_ns < first_failure->failed_ns) {
      first_failure = &outcome;
    }
  }
  if (first_failure != nullptr) return *first_failure->error;
  std::vector<Played> played;
  for (Outcome& outcome : outcomes) played.push_back(std::move(*outcome.played));
  return played;
}

}  // namespace headrace::replay
