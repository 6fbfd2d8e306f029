#include "service/watch/metrics.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>
#include <string>

#include "service/watch/metrics_text.h"
#include "tests/unit/service/metrics/board.h"

namespace headrace::service {
namespace {

const ProcessFacts kProcess{.cpu_ns = 12'340'000'000,
                            .resident_bytes = 50'000'000,
                            .virtual_bytes = 900'000'000,
                            .descriptors = 33,
                            .descriptors_max = 1'048'576,
                            .threads = 5};

std::string MetricsOf(const ipc::BoardLayout& board) {
  return WriteMetrics(ReadBoard(board, kNow), kProcess);
}

// The names of all families.
std::set<std::string> Families(const std::string& text) {
  std::set<std::string> names;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("# TYPE ", 0) == 0) names.insert(line.substr(7, line.find(' ', 7) - 7));
  }
  return names;
}

TEST(Metrics, AreTheGoldenTextForABoardWithSomethingEverywhere) {
  ExpectGolden("metrics.txt", MetricsOf(*MakeBoard()));
}

TEST(Metrics, NameTheSameFamiliesWithoutAnyJob) {
  const auto empty = std::make_unique<ipc::BoardLayout>();
  EXPECT_EQ(Families(MetricsOf(*empty)), Families(MetricsOf(*MakeBoard())));
}

TEST(Metrics, HaveNoSampleTwice) {
  std::set<std::string> seen;
  std::istringstream lines(MetricsOf(*MakeBoard()));
  for (std::string line; std::getline(lines, line);) {
    if (line[0] == '#') continue;
    EXPECT_TRUE(seen.insert(line.substr(0, line.rfind(' '))).second) << line;
  }
}

TEST(Metrics, TellJobsOfTwoUsersWithOneNameApart) {
  const auto board = MakeBoard();
  ipc::JobRow job = *ipc::ReadRow(board->jobs[63]);
  const std::string series = "headrace_job_world_size{job=\"bert\",uid=\"";
  const std::string own = series + std::to_string(job.owner_uid) + "\"} ";
  job.id = 4711;
  job.owner_uid = 65534;
  job.world_size = 63;
  ipc::WriteRow(board->jobs[62], job);
  ipc::RankRow rank{};
  rank.job_id = job.id;
  ipc::WriteRow(board->ranks[500], rank);
  const std::string text = MetricsOf(*board);
  EXPECT_NE(text.find(own), std::string::npos);
  EXPECT_NE(text.find(series + "65534\"} 63\n"), std::string::npos);
  EXPECT_NE(text.find("headrace_rank_posts_total{job=\"bert\",uid=\"65534\",rank=\"0\"} 0\n"),
            std::string::npos);
}

TEST(Metrics, OfAJobEndWithIt) {
  const auto board = MakeBoard();
  EXPECT_NE(MetricsOf(*board).find("job=\"bert\""), std::string::npos);
  ipc::WriteRow(board->jobs[63], ipc::JobRow{});
  // What others wrote about it may stand there a little longer.
  EXPECT_EQ(MetricsOf(*board).find("job=\"bert\""), std::string::npos);
}

TEST(Metrics, AreBoundedByTheBoard) {
  const auto board = MakeBoard();
  const std::string name(63, '"');  // every byte of it is escaped
  for (std::uint32_t i = 0; i < ipc::kJobRowsMax; ++i) {
    ipc::JobRow job{};
    job.id = i + 1;
    ipc::SetText(job.name, name.substr(0, i));
    ipc::WriteRow(board->jobs[i], job);
  }
  for (std::uint32_t i = 0; i < ipc::kRankRowsMax; ++i) {
    ipc::RankRow rank{};
    rank.job_id = 1 + i % ipc::kJobRowsMax;
    rank.rank = i;
    ipc::WriteRow(board->ranks[i], rank);
  }
  for (std::uint32_t i = 0; i < ipc::kShareRowsMax; ++i) {
    ipc::ShareRow share{};
    share.job_id = 1 + i % ipc::kJobRowsMax;
    share.lane = i % 2;
    ipc::WriteRow(board->shares[i], share);
  }
  EXPECT_LT(MetricsOf(*board).size(), std::size_t{4} << 20);
}

TEST(Metrics, HaveNoBusyTimeOfALaneThatCannotTellMovingFromWaiting) {
  const auto board = MakeBoard();
  ipc::LaneRow lane = *ipc::ReadRow(board->lanes[1]);
  lane.busy_ns = ipc::kTimeUnknown;
  ipc::WriteRow(board->lanes[1], lane);
  const std::string text = MetricsOf(*board);
  EXPECT_EQ(text.find("headrace_lane_busy_seconds_total{lane=\"ucx0\"}"), std::string::npos);
  EXPECT_NE(text.find("headrace_lane_busy_seconds_total{lane=\"shm0\"} 923\n"), std::string::npos);
  EXPECT_NE(text.find("headrace_lane_threads{lane=\"ucx0\"}"), std::string::npos);
}

TEST(Metrics, LeaveOutARowThatIsBeingWritten) {
  const auto board = MakeBoard();
  board->jobs[63].version.fetch_add(1);
  const std::string text = MetricsOf(*board);
  EXPECT_NE(text.find("headrace_service_board_rows_unread 1\n"), std::string::npos);
  EXPECT_EQ(text.find("job=\"bert\""), std::string::npos);
}

TEST(Process, IsThisOne) {
  const ProcessFacts facts = ReadProcess();
  EXPECT_GT(facts.cpu_ns, 0);
  EXPECT_GT(facts.resident_bytes, 1U << 20U);
  EXPECT_GT(facts.virtual_bytes, facts.resident_bytes);
  EXPECT_GE(facts.descriptors, 3U);
  EXPECT_GE(facts.descriptors_max, facts.descriptors);
  EXPECT_GE(facts.threads, 1U);
}

}  // namespace
}  // namespace headrace::service
