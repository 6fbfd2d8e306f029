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
  std::optional<RankResult> result;
  std::optional<Error> error;
  TimeNs failed_ns = 0;
};

// As it stands once the board shows iteration `last`, or has had some time for it.
FinalBoard ReadFinalBoard(const PlanWatch& watch, std::uint64_t last) {
  FinalBoard board;
  const TimeNs deadline = MonotonicNow() + kBoardPatience;
  for (;;) {
    board.plan = watch.Plan();
    const bool is_there = board.plan && board.plan->iteration >= last;
    if (is_there || MonotonicNow() >= deadline) break;
    SleepUntil(MonotonicNow() + kBoardPause);
  }
  board.blocks = watch.Blocks();
  board.lanes = watch.Lanes();
  return board;
}

Result<RankResult> ReplayOneRank(const ReplayConfig& config, const AttachOptions& attach,
                                 const std::string& board_path) {
  Result<RankSession> session = RankSession::Attach(attach, config.profile);
  if (!session) return session.error();
  const Result<PlanWatch> watch = PlanWatch::Open(board_path, attach.job);
  if (!watch) return watch.error();
  ReplayRank replay(*session, *watch, config, attach.rank, attach.world_size);
  Result<ReplayResult> result = replay.Run();
  if (!result) return result.error();
  RankResult rank{attach.rank, std::move(result).value(), {}};
  rank.board = ReadFinalBoard(*watch, rank.result.warmup + rank.result.iterations.size());
  // The job's rows go with its first rank: nobody leaves before all have read them.
  const Result<bool> all_have_read = session->AllAgree(true);
  if (!all_have_read) return all_have_read.error();
  return rank;
}

}  // namespace

Result<std::vector<RankResult>> ReplayRanks(const ReplayConfig& config,
                                            const std::vector<AttachOptions>& attach,
                                            const std::vector<std::string>& board_paths) {
  std::vector<Outcome> outcomes(attach.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < attach.size(); ++i) {
    threads.emplace_back(
        [&config, &one = attach[i], &board = board_paths[i], &outcome = outcomes[i]] {
          Result<RankResult> rank = ReplayOneRank(config, one, board);
          if (rank) {
            outcome.result = std::move(rank).value();
          } else {
            outcome.error = rank.error().Within(fmt::format("rank {}", one.rank));
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
  std::vector<RankResult> ranks;
  for (Outcome& outcome : outcomes) ranks.push_back(std::move(*outcome.result));
  return ranks;
}

}  // namespace headrace::replay
