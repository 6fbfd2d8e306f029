// When a service is asked whether it lives, and when it is given up.
#include "client/lib/standstill.h"

#include <gtest/gtest.h>

namespace headrace::client {
namespace {

using Step = StandstillDetector::Step;

constexpr TimeNs kTimeout = 2 * kSecond;

class StandstillTest : public ::testing::Test {
 protected:
  // Looks at the pace that is asked for until something is to be done, or the time is over.
  Step LookFor(TimeNs duration_ns, std::uint64_t oldest) {
    const TimeNs end = now_ + duration_ns;
    while (now_ < end) {
      now_ += detector_.interval_ns();
      if (const Step step = detector_.Check(now_, oldest); step != Step::kNone) return step;
    }
    return Step::kNone;
  }

  StandstillDetector detector_{kTimeout};
  TimeNs now_ = 1000 * kSecond;
};

TEST_F(StandstillTest, LeavesAServiceAloneThatEndsOperationsInTime) {
  EXPECT_EQ(LookFor(60 * kSecond, 0), Step::kNone) << "nothing is open";
  for (std::uint64_t oldest = 1; oldest < 100; ++oldest) {
    EXPECT_EQ(LookFor(kTimeout, oldest), Step::kNone);
  }
}

TEST_F(StandstillTest, AsksOnceWhatIsOpenIsOverdueAndGivesUpWithoutAnAnswer) {
  const TimeNs posted = now_;
  EXPECT_EQ(LookFor(60 * kSecond, 7), Step::kAsk);
  EXPECT_LE(now_ - posted, kTimeout + 2 * detector_.interval_ns());
  EXPECT_EQ(LookFor(60 * kSecond, 7), Step::kGiveUp);
  EXPECT_LE(now_ - posted, kTimeout + AnswerMargin(kTimeout) + 2 * detector_.interval_ns());
}

TEST_F(StandstillTest, WaitsAsLongOnceMoreAfterAnAnswer) {
  for (int i = 0; i < 10; ++i) {  // of a paused job, for example
    const TimeNs begin = now_;
    EXPECT_EQ(LookFor(60 * kSecond, 7), Step::kAsk);
    EXPECT_GE(now_ - begin, kTimeout);
    detector_.OnAnswer(true);
  }
}

TEST_F(StandstillTest, AsksAgainAfterAQuestionThatFailed) {
  EXPECT_EQ(LookFor(60 * kSecond, 7), Step::kAsk);
  detector_.OnAnswer(false);
  EXPECT_EQ(LookFor(60 * kSecond, 7), Step::kAsk);
  detector_.OnAnswer(false);
  EXPECT_EQ(LookFor(60 * kSecond, 7), Step::kAsk);
  detector_.OnAnswer(true);
  EXPECT_EQ(LookFor(kTimeout - detector_.interval_ns(), 7), Step::kNone);
}

TEST_F(StandstillTest, DoesNotCountTheTimeInWhichThisProcessStoodStill) {
  EXPECT_EQ(LookFor(kSecond, 7), Step::kNone);
  now_ += 3600 * kSecond;
  EXPECT_EQ(detector_.Check(now_, 7), Step::kNone);
}

}  // namespace
}  // namespace headrace::client
