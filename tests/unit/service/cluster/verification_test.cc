// What nodes have got is compared by their leader, block by block.
#include "service/cluster/verification.h"

#include <gtest/gtest.h>

#include "tests/support/expect_text.h"
#include "tests/unit/service/cluster/meeting.h"

namespace headrace::support {
namespace {

using service::BlockHash;
using service::BlockName;
using service::JobFailed;
using service::Verification;

service::Agreement AgreementOf(std::vector<std::string> names, std::uint32_t servers_count = 0) {
  service::Agreement agreement;
  for (std::string& name : names) {
    agreement.nodes.push_back({.name = std::move(name), .ranks = {}, .addresses = {}});
  }
  agreement.servers_count = servers_count;
  return agreement;
}

constexpr BlockName kBlock{.planned = true, .number = 400, .block = 2};

TEST(Verification, NamesBlockIterationAndNodesAndWhoIsAloneFirst) {
  Verification verification(AgreementOf({"a", "b", "c"}));
  EXPECT_FALSE(verification.Compare(0, {kBlock, 0x11}));
  EXPECT_FALSE(verification.Compare(2, {kBlock, 0x11}));
  const std::optional<std::string> difference = verification.Compare(1, {kBlock, 0x22});
  ASSERT_TRUE(difference);
  EXPECT_TEXT(*difference, "block 3 of iteration 400", "0000000000000022 on b",
              "0000000000000011 on a, c");
}

TEST(Verification, IsSilentWhereAllHaveTheSameInWhateverOrderTheyTell) {
  Verification verification(AgreementOf({"a", "b"}));
  const BlockHash one{kBlock, 1};
  const BlockHash other{{.planned = false, .number = 400, .block = 2}, 2};
  EXPECT_FALSE(verification.Compare(0, one));
  EXPECT_FALSE(verification.Compare(1, other)) << "an operation is no iteration";
  EXPECT_FALSE(verification.Compare(0, other));
  EXPECT_FALSE(verification.Compare(1, one));
}

TEST(Verification, WaitsForNoServerAndHearsANodeOnce) {
  Verification verification(AgreementOf({"a", "b", "s"}, 1));
  EXPECT_FALSE(verification.Compare(0, {kBlock, 1}));
  EXPECT_FALSE(verification.Compare(0, {kBlock, 2})) << "said already";
  EXPECT_FALSE(verification.Compare(1, {kBlock, 1}));
  const BlockName next{.number = 2};
  EXPECT_FALSE(verification.Compare(0, {next, 1}));
  EXPECT_TRUE(verification.Compare(1, {next, 2})) << "a server holds no results";
}

TEST(Verification, KeepsSoManyBlocksAndNoMore) {
  Verification verification(AgreementOf({"a", "b"}));
  for (std::uint64_t number = 1; number <= Verification::kOpenMax + 1; ++number) {
    EXPECT_FALSE(verification.Compare(0, {{.number = number}, 1}));
  }
  EXPECT_FALSE(verification.Compare(1, {{.number = 1}, 2})) << "the oldest is forgotten";
  EXPECT_TRUE(verification.Compare(1, {{.number = Verification::kOpenMax + 1}, 2}));
}

class VerifyingMeeting : public ::testing::Test {
 protected:
  void Begin() {
    meeting_.Attach(a_, Meeting::Rank(1, 0, 2));
    meeting_.Attach(b_, Meeting::Rank(7, 1, 2));
    meeting_.Run();
    ASSERT_EQ(b_.Told<service::JobFormed>().size(), 1U) << b_.failure();
  }
  void Tell(std::uint64_t number, std::uint64_t on_a, std::uint64_t on_b) {
    a_.follower.Handle(service::BlockHashed{JobId{1}, {{.number = number}, on_a}});
    b_.follower.Handle(service::BlockHashed{JobId{7}, {{.number = number}, on_b}});
    meeting_.Run();
  }

  Meeting meeting_{{.verify = 10}};
  MeetingNode& a_ = meeting_.AddNode("a");
  MeetingNode& b_ = meeting_.AddNode("b");
};

TEST_F(VerifyingMeeting, EveryNodeDoesAsTheLeaderIsConfigured) {
  Begin();
  EXPECT_EQ(a_.Told<service::JobFormed>()[0].nodes.verify, 10U);
  EXPECT_EQ(b_.Told<service::JobFormed>()[0].nodes.verify, 10U);
}

TEST_F(VerifyingMeeting, ADifferenceEndsTheJobOnAllNodes) {
  Begin();
  Tell(10, 5, 5);
  EXPECT_EQ(a_.failure(), "");
  Tell(20, 5, 6);
  for (const MeetingNode* node : {&a_, &b_}) {
    const auto failed = node->Told<JobFailed>();
    ASSERT_EQ(failed.size(), 1U);
    EXPECT_EQ(failed[0].code, Code::kCorrupt);
    EXPECT_TEXT(failed[0].cause, "block 1", "operation 20", " a", " b");
  }
}

TEST(Verification, IsNothingToALeaderThatIsNotConfiguredForIt) {
  Meeting meeting;
  MeetingNode& a = meeting.AddNode("a");
  MeetingNode& b = meeting.AddNode("b");
  meeting.Attach(a, Meeting::Rank(1, 0, 2));
  meeting.Attach(b, Meeting::Rank(7, 1, 2));
  meeting.Run();
  a.follower.Handle(service::BlockHashed{JobId{1}, {{.number = 1}, 1}});
  b.follower.Handle(service::BlockHashed{JobId{7}, {{.number = 1}, 2}});
  meeting.Run();
  EXPECT_EQ(a.failure(), "");
}

}  // namespace
}  // namespace headrace::support
