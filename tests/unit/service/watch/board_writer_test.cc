// Dispatch's hand on the board: rows are given out, written whole, cleared and given out again.
#include "service/watch/board_writer.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>

namespace headrace::service {
namespace {

class BoardWriterTest : public ::testing::Test {
 protected:
  std::unique_ptr<ipc::BoardLayout> board_ = std::make_unique<ipc::BoardLayout>();
  BoardWriter writer_{*board_};
};

TEST_F(BoardWriterTest, GivesOutEachRowOnceFromTheTop) {
  std::set<std::uint16_t> rows;
  for (std::size_t i = 0; i < ipc::kJobRowsMax; ++i) {
    const std::uint16_t row = writer_.ClaimJobRow();
    EXPECT_EQ(row, i);
    rows.insert(row);
  }
  EXPECT_EQ(rows.size(), ipc::kJobRowsMax);
  EXPECT_EQ(writer_.ClaimJobRow(), kNoRow);
  writer_.FreeJobRow(5);
  EXPECT_EQ(writer_.ClaimJobRow(), 5);
}

TEST_F(BoardWriterTest, WritesAndClearsRows) {
  const std::uint16_t row = writer_.ClaimRankRow();
  ipc::RankRow rank{};
  rank.job_id = 3;
  writer_.Write(row, rank);
  EXPECT_EQ(ipc::ReadRow(board_->ranks[row])->job_id, 3U);
  writer_.FreeRankRow(row);
  EXPECT_EQ(ipc::ReadRow(board_->ranks[row])->job_id, 0U);
}

TEST_F(BoardWriterTest, DoesNothingForARowItDidNotHave) {
  ipc::JobRow job{};
  job.id = 1;
  writer_.Write(kNoRow, job);
  writer_.Write(kNoRow, ipc::RankRow{});
  writer_.Write(kNoRow, ipc::QueueRow{});
  writer_.FreeJobRow(kNoRow);
  writer_.FreeRankRow(kNoRow);
  writer_.FreeQueueRow(kNoRow);
  for (std::size_t i = 0; i < ipc::kJobRowsMax; ++i) EXPECT_NE(writer_.ClaimJobRow(), kNoRow);
  EXPECT_EQ(writer_.ClaimJobRow(), kNoRow);
}

TEST_F(BoardWriterTest, CountsTheQueueRowsItCouldNotGive) {
  for (std::size_t i = 0; i < ipc::kQueueRowsMax; ++i) EXPECT_NE(writer_.ClaimQueueRow(), kNoRow);
  EXPECT_EQ(writer_.counters.queue_rows_left_out, 0U);
  EXPECT_EQ(writer_.ClaimQueueRow(), kNoRow);
  EXPECT_EQ(writer_.counters.queue_rows_left_out, 1U);
}

TEST_F(BoardWriterTest, PublishesCountersOnlyWhenTheyDiffer) {
  writer_.counters.records_read = 7;
  writer_.PublishCounters();
  EXPECT_EQ(ipc::ReadRow(board_->counters)->records_read, 7U);
  const std::uint64_t version = board_->counters.version.load();
  writer_.PublishCounters();
  EXPECT_EQ(board_->counters.version.load(), version);
  writer_.counters.sleeps = 1;
  writer_.PublishCounters();
  EXPECT_EQ(board_->counters.version.load(), version + 2);
}

}  // namespace
}  // namespace headrace::service
