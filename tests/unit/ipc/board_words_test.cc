#include "ipc/board_words.h"

#include <gtest/gtest.h>

namespace headrace::ipc {
namespace {

TEST(BoardWords, HaveASentenceForEveryReason) {
  const BoardReading reading;
  for (std::uint32_t reason = 1; reason <= 12; ++reason) {
    QueueRow row{};
    row.reason = reason;
    EXPECT_FALSE(WhyItWaits(row, reading).empty()) << reason;
    EXPECT_NE(WaitReasonName(reason), "unknown") << reason;
  }
  QueueRow foreign{};
  foreign.reason = 13;
  EXPECT_EQ(WhyItWaits(foreign, reading), "reason 13 of another version");
}

TEST(BoardWords, NameTheFirstRanksOfMany) {
  const BoardReading reading;
  QueueRow row{};
  row.job_id = 3;
  row.reason = static_cast<std::uint32_t>(WaitReason::kRankNotReady);
  row.ranks_missing = 0b1011'0110;
  EXPECT_EQ(WhyItWaits(row, reading), "ranks 1, 2, 4, 5 of job #3 and 1 more not ready for 0.0 ms");
}

}  // namespace
}  // namespace headrace::ipc
