#include "service/peers/unsent_messages.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <variant>

#include "service/peers/peer_link.h"

namespace headrace::service {
namespace {

PeerMessage HashOf(std::uint64_t hash) {
  return ReportBlockHashed{.job = 7, .hash = {.name = {}, .hash = hash}};
}

// Sends the first and has it acknowledged.
PeerMessage Pop(UnsentMessages& unsent) {
  PeerMessage first = unsent.at(0);
  unsent.MarkSent(1);
  EXPECT_TRUE(unsent.Acknowledge(unsent.first()).ok());
  return first;
}

PlanPiece PieceOf(std::size_t bytes) {
  return {.job = 7, .text = std::make_shared<const std::string>(bytes, 'x')};
}

TEST(UnsentMessages, GoOutInOrderAndLeaveNothing) {
  UnsentMessages unsent;
  for (std::uint32_t job = 1; job <= 5; ++job) ASSERT_TRUE(unsent.Push(ForgetJob{job}));
  for (std::uint32_t job = 1; job <= 5; ++job) {
    EXPECT_EQ(std::get<ForgetJob>(Pop(unsent)).job, job);
  }
  EXPECT_TRUE(unsent.empty());
  EXPECT_EQ(unsent.bytes(), 0);
}

TEST(UnsentMessages, EndTheLinkByNumber) {
  UnsentMessages unsent;
  for (std::uint32_t i = 0; i < kUnsentMax; ++i) {
    ASSERT_TRUE(unsent.Push(ForgetJob{i}));
  }
  EXPECT_FALSE(unsent.Push(ForgetJob{1}));
}

TEST(UnsentMessages, EndTheLinkByBytes) {
  UnsentMessages unsent;
  const PlanPiece piece = PieceOf(128 << 10);
  std::size_t pushed = 1;
  while (unsent.Push(piece)) ASSERT_LT(++pushed, 1000);
  EXPECT_GT(unsent.bytes(), kUnsentBytesMax);
  EXPECT_EQ(pushed, unsent.size());
}

TEST(UnsentMessages, LeaveOutReportsThatComeForEver) {
  UnsentMessages unsent;
  for (std::uint64_t i = 0; i < 3 * kUnsentMax; ++i) {
    ASSERT_TRUE(unsent.Push(HashOf(i)));
    ASSERT_TRUE(unsent.Push(ReportTimesSeen{.job = 7, .seen = {}}));
  }
  EXPECT_EQ(unsent.size(), kUnsentMax / 2);
  // Others have the other half for themselves.
  EXPECT_TRUE(unsent.Push(ForgetJob{1}));
  EXPECT_EQ(unsent.size(), kUnsentMax / 2 + 1);
}

TEST(UnsentMessages, LeaveOutReportsWhileManyBytesWait) {
  UnsentMessages unsent;
  while (unsent.bytes() < kUnsentBytesMax / 2) {
    ASSERT_TRUE(unsent.Push(PieceOf(128 << 10)));
  }
  const std::size_t before = unsent.size();
  EXPECT_TRUE(unsent.Push(HashOf(1)));
  EXPECT_EQ(unsent.size(), before);
  Pop(unsent);
  EXPECT_TRUE(unsent.Push(HashOf(1)));
  EXPECT_EQ(unsent.size(), before);
}

TEST(UnsentMessages, KeepTheLastReportOfAQuestion) {
  UnsentMessages unsent;
  for (std::uint32_t epoch = 1; epoch <= 3 * kUnsentMax; ++epoch) {
    ASSERT_TRUE(unsent.Push(ReportQuorum{
        .job = 4, .name = "job", .membership = {}, .epoch = epoch, .rules = {}, .members = {}}));
  }
  ASSERT_TRUE(unsent.Push(ReportQuorum{
      .job = 5, .name = "other", .membership = {}, .epoch = 9, .rules = {}, .members = {}}));
  EXPECT_EQ(unsent.size(), 2);
  EXPECT_EQ(std::get<ReportQuorum>(Pop(unsent)).epoch, 3 * kUnsentMax);
  EXPECT_EQ(std::get<ReportQuorum>(Pop(unsent)).epoch, 9);
  EXPECT_EQ(unsent.bytes(), 0);
}

TEST(UnsentMessages, StayUntilTheyAreAcknowledged) {
  UnsentMessages unsent;
  for (std::uint32_t job = 1; job <= 5; ++job) ASSERT_TRUE(unsent.Push(ForgetJob{job}));
  unsent.MarkSent(3);
  EXPECT_EQ(unsent.size(), 5);
  EXPECT_TRUE(unsent.Acknowledge(2).ok());
  EXPECT_EQ(unsent.first(), 3);
  EXPECT_EQ(std::get<ForgetJob>(unsent.at(0)).job, 3);
  // Said again, and what was true before.
  EXPECT_TRUE(unsent.Acknowledge(2).ok());
  EXPECT_TRUE(unsent.Acknowledge(0).ok());
  EXPECT_EQ(unsent.size(), 3);
}

TEST(UnsentMessages, RefuseAcknowledgementsOfWhatWasNeverSent) {
  UnsentMessages unsent;
  for (std::uint32_t job = 1; job <= 5; ++job) ASSERT_TRUE(unsent.Push(ForgetJob{job}));
  unsent.MarkSent(3);
  EXPECT_EQ(unsent.Acknowledge(4).code(), Code::kCorrupt);
  EXPECT_EQ(unsent.Acknowledge(UINT64_MAX).code(), Code::kCorrupt);
  EXPECT_EQ(unsent.size(), 5);
}

// Else two messages could have one number.
TEST(UnsentMessages, KeepAReportThatIsUnderWay) {
  UnsentMessages unsent;
  const auto report = [](std::uint32_t epoch) {
    return ReportQuorum{
        .job = 4, .name = "job", .membership = {}, .epoch = epoch, .rules = {}, .members = {}};
  };
  ASSERT_TRUE(unsent.Push(report(1)));
  unsent.MarkSent(1);
  ASSERT_TRUE(unsent.Push(report(2)));
  ASSERT_TRUE(unsent.Push(report(3)));
  ASSERT_EQ(unsent.size(), 2);
  EXPECT_EQ(std::get<ReportQuorum>(unsent.at(0)).epoch, 1);
  EXPECT_EQ(std::get<ReportQuorum>(unsent.at(1)).epoch, 3);
}

TEST(ReceivedNumbers, TakeEachNumberOnceAndInOrder) {
  ReceivedNumbers received;
  EXPECT_EQ(received.Note(2), ReceivedNumbers::Verdict::kMissing);
  EXPECT_EQ(received.Note(1), ReceivedNumbers::Verdict::kNext);
  EXPECT_EQ(received.Note(1), ReceivedNumbers::Verdict::kAgain);
  EXPECT_EQ(received.Note(2), ReceivedNumbers::Verdict::kNext);
  EXPECT_EQ(received.Note(0), ReceivedNumbers::Verdict::kAgain);
  EXPECT_EQ(received.Note(UINT64_MAX), ReceivedNumbers::Verdict::kMissing);
  EXPECT_EQ(received.last(), 2);
}

TEST(UnsentMessages, FillACallAndNoMore) {
  UnsentMessages unsent;
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(unsent.Push(ForgetJob{1}));
  EXPECT_EQ(unsent.CountOfCall(kMessagesPerCallMax, kBytesPerCallMax), kMessagesPerCallMax);
  unsent.Clear();
  EXPECT_EQ(unsent.CountOfCall(kMessagesPerCallMax, kBytesPerCallMax), 0);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(unsent.Push(PieceOf(100 << 10)));
  EXPECT_EQ(unsent.CountOfCall(kMessagesPerCallMax, kBytesPerCallMax), 2);
  // One message that is larger than a call has a call to itself.
  EXPECT_EQ(unsent.CountOfCall(kMessagesPerCallMax, 1000), 1);
}

}  // namespace
}  // namespace headrace::service
