#include "tests/support/loopback/loopback_transport.h"

#include <gtest/gtest.h>

#include "tests/contract/members.h"

namespace headrace::transport {
namespace {

Transfer AllReduce(std::uint64_t token, const Members& members) {
  Transfer transfer{.token = token, .kind = Collective::kAllReduce};
  members.Describe(transfer);
  return transfer;
}

// Runs the clock from event to event until nothing is due.
std::vector<Completion> RunOut(LoopbackTransport& transport) {
  std::vector<Completion> completions;
  while (transport.NextDue() != kNever) transport.DoWork(transport.NextDue(), completions);
  return completions;
}

TEST(LoopbackTransport, TakesTheTimeOfItsCostLine) {
  LoopbackTransport transport({.piece_size = 1000, .startup_ns = 500, .ns_per_byte = 2.0});
  Members members(DType::kUInt8, 2500, 2);
  members.Fill(1);
  ASSERT_EQ(transport.Post(AllReduce(1, members), 100), PostResult::kAccepted);
  EXPECT_EQ(transport.NextDue(), 100 + 500 + 2000);  // the first piece
  std::vector<Completion> completions;
  EXPECT_FALSE(transport.DoWork(2599, completions));
  const auto before = members.Contents();
  EXPECT_FALSE(transport.DoWork(2600, completions));
  EXPECT_NE(members.Contents(), before);
  EXPECT_EQ(transport.NextDue(), 100 + 500 + 4000);
  EXPECT_TRUE(transport.DoWork(9999, completions));  // late: the third piece was due as well
  EXPECT_FALSE(transport.DoWork(9999, completions));
  ASSERT_EQ(completions.size(), 1U);
  EXPECT_EQ(completions[0].begin_ns, 100);
  EXPECT_EQ(completions[0].end_ns, 100 + 500 + 5000);
}

TEST(LoopbackTransport, CarriesOneTransferAtATime) {
  LoopbackTransport transport({.startup_ns = 10, .ns_per_byte = 1.0});
  Members a(DType::kUInt8, 100, 2);
  Members b(DType::kUInt8, 200, 2);
  ASSERT_EQ(transport.Post(AllReduce(1, a), 0), PostResult::kAccepted);
  ASSERT_EQ(transport.Post(AllReduce(2, b), 0), PostResult::kAccepted);
  const auto completions = RunOut(transport);
  ASSERT_EQ(completions.size(), 2U);
  EXPECT_EQ(completions[0].end_ns, 110);
  EXPECT_EQ(completions[1].begin_ns, 110);
  EXPECT_EQ(completions[1].end_ns, 320);
}

TEST(LoopbackTransport, AnswersBusyWhenTold) {
  LoopbackTransport transport({});
  Members members(DType::kUInt8, 10, 2);
  transport.AnswerBusy(2);
  EXPECT_EQ(transport.Post(AllReduce(1, members), 0), PostResult::kBusy);
  EXPECT_EQ(transport.Post(AllReduce(1, members), 0), PostResult::kBusy);
  EXPECT_EQ(transport.Post(AllReduce(1, members), 0), PostResult::kAccepted);
}

TEST(LoopbackTransport, FailsAtTheScriptedPiece) {
  LoopbackTransport transport({.piece_size = 8});
  Members members(DType::kUInt8, 24, 2);
  members.Fill(3);
  const auto before = members.Content(0);
  transport.Fail(5, Code::kPeerLost, 1);
  ASSERT_EQ(transport.Post(AllReduce(5, members), 0), PostResult::kAccepted);
  const auto completions = RunOut(transport);
  ASSERT_EQ(completions.size(), 1U);
  EXPECT_EQ(completions[0].code, Code::kPeerLost);
  const auto after = members.Content(0);
  EXPECT_FALSE(std::equal(after.begin(), after.begin() + 8, before.begin()));  // one piece done
  EXPECT_TRUE(std::equal(after.begin() + 8, after.end(), before.begin() + 8));
  // The script is used up.
  ASSERT_EQ(transport.Post(AllReduce(5, members), 0), PostResult::kAccepted);
  EXPECT_EQ(RunOut(transport).front().code, Code::kOk);
}

TEST(LoopbackTransport, FailsAtTheEndWhereTheScriptNamesALaterPiece) {
  LoopbackTransport transport({});
  Members members(DType::kUInt8, 0, 2);
  transport.Fail(5, Code::kTimeout, 100);
  ASSERT_EQ(transport.Post(AllReduce(5, members), 0), PostResult::kAccepted);
  EXPECT_EQ(RunOut(transport).front().code, Code::kTimeout);
}

// Posts 200 transfers and writes down all that can be seen from outside.
std::vector<std::int64_t> RunSeeded(std::uint64_t seed) {
  LoopbackTransport transport({.startup_ns = 10,
                               .ns_per_byte = 1.0,
                               .seed = seed,
                               .busy_share = 0.2,
                               .failure_share = 0.3,
                               .jitter_share = 0.5});
  std::vector<std::int64_t> seen;
  for (std::uint64_t token = 0; token < 200; ++token) {
    Members members(DType::kUInt8, 100 + token, 2);
    const PostResult posted = transport.Post(AllReduce(token, members), 0);
    seen.push_back(static_cast<std::int64_t>(posted));
    for (const Completion& completion : RunOut(transport)) {
      seen.push_back(static_cast<std::int64_t>(completion.code));
      seen.push_back(completion.end_ns);
    }
  }
  return seen;
}

TEST(LoopbackTransport, MisbehavesTheSameWayForTheSameSeed) {
  EXPECT_EQ(RunSeeded(1), RunSeeded(1));
  EXPECT_NE(RunSeeded(1), RunSeeded(2));
}

TEST(LoopbackTransport, MisbehavesAboutAsOftenAsItIsTold) {
  LoopbackTransport transport({.busy_share = 0.2, .failure_share = 0.3});
  int busy = 0;
  int failed = 0;
  for (std::uint64_t token = 0; token < 2000; ++token) {
    Members members(DType::kUInt8, 4, 1);
    if (transport.Post(AllReduce(token, members), 0) == PostResult::kBusy) {
      ++busy;
    } else if (RunOut(transport).front().code == Code::kPeerLost) {
      ++failed;
    }
  }
  EXPECT_NEAR(busy, 400, 80);
  EXPECT_NEAR(failed, 480, 90);
}

}  // namespace
}  // namespace headrace::transport
