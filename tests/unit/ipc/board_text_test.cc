#include "ipc/board_text.h"

#include <gtest/gtest.h>

#include "ipc/records.h"
#include "tests/support/expect_text.h"

namespace headrace::ipc {
namespace {

TEST(BoardText, HaveASentenceForEveryReason) {
  const BoardReading reading;
  for (std::uint32_t reason = 1; reason <= 19; ++reason) {
    QueueRow row{};
    row.reason = reason;
    EXPECT_FALSE(WhyItWaits(row, reading).empty()) << reason;
    EXPECT_NE(WaitReasonName(reason), "unknown") << reason;
  }
  QueueRow foreign{};
  foreign.reason = 99;
  EXPECT_TEXT(WhyItWaits(foreign, reading));
}

TEST(BoardText, NameTheFirstRanksOfMany) {
  const BoardReading reading;
  QueueRow row{};
  row.job_id = 3;
  row.reason = static_cast<std::uint32_t>(WaitReason::kRankNotReady);
  row.ranks_missing = 0b1011'0110;
  EXPECT_TEXT(WhyItWaits(row, reading), "ranks 1", "job #3");
}

TEST(BoardText, NameTheOtherSideOfASendOrReceiveWithItsTag) {
  const BoardReading reading;
  QueueRow row{};
  row.job_id = 3;
  row.source = 2;
  row.target = 5;
  row.tag = 7;
  row.reason = static_cast<std::uint32_t>(WaitReason::kNoReceive);
  row.wait_argument = 5;
  EXPECT_TEXT(WhyItWaits(row, reading), "rank 5", "job #3", "rank 2", "tag 7");
  row.reason = static_cast<std::uint32_t>(WaitReason::kNoSend);
  row.wait_argument = 2;
  EXPECT_TEXT(WhyItWaits(row, reading), "rank 2", "job #3", "rank 5", "tag 7");
  row.source = kAnyRank;
  row.wait_argument = kAnyRank;
  EXPECT_TEXT(WhyItWaits(row, reading), "job #3", "rank 5", "tag 7");
}

TEST(BoardText, NameThePeerThatStagesBehindASlowOneWaitFor) {
  BoardReading reading;
  QueueRow slow{};
  slow.job_id = 3;
  slow.reason = static_cast<std::uint32_t>(WaitReason::kPeer);
  SetText(slow.peer, "node-c");
  QueueRow next{};
  next.job_id = 3;
  next.iteration = 5;
  next.reason = static_cast<std::uint32_t>(WaitReason::kInFlight);
  next.wait_argument = 1;
  EXPECT_TEXT(WhyItWaits(next, reading));
  reading.queue = {slow, next};
  EXPECT_TEXT(WhyItWaits(next, reading));
  next.job_id = 4;
  EXPECT_TEXT(WhyItWaits(next, reading));
}

TEST(BoardText, NameAJobThatIsOverWhileTheRecorderKnowsIt) {
  BoardReading reading;
  FlightJobRow over{};
  over.job_id = 9;
  SetText(over.name, "bert");
  reading.flights.push_back({.index = 0, .row = over});
  EXPECT_EQ(JobName(9, reading), "bert");
  EXPECT_EQ(JobName(10, reading), "#10");
}

}  // namespace
}  // namespace headrace::ipc
