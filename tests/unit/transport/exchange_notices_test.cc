// Notices of a group: in order whatever overtakes what, bounded, and ended with the links.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tests/unit/transport/exchange_fleet.h"

namespace headrace::transport {
namespace {

std::vector<std::byte> BytesOf(std::uint32_t number, std::size_t size = sizeof(number)) {
  std::vector<std::byte> bytes(std::max(size, sizeof(number)));
  std::memcpy(bytes.data(), &number, sizeof(number));
  return bytes;
}

std::uint32_t NumberOf(const Notice& notice) {
  std::uint32_t number = 0;
  std::memcpy(&number, notice.bytes.data(), sizeof(number));
  return number;
}

std::vector<Notice> Take(Fleet& fleet, std::uint32_t node) {
  std::vector<Notice> notices;
  fleet.node(node).DrainNotices(notices);
  return notices;
}

MessageHeader HeaderOf(std::uint64_t number, std::uint64_t taken = 0) {
  return {.key = KeyOf(1),
          .epoch = 3,
          .plan_version = 5,
          .position = number,
          .count = taken,
          .kind = NoticeLinks::kKind,
          .root = 0,
          .sender = 1};
}

TEST(ExchangeNotices, ArriveInTheOrderInWhichTheyWereSentOnLinksThatDoNotKeepIt) {
  constexpr std::uint32_t kCount = 5 * NoticeLinks::kNoticesWindow + 3;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Fleet fleet({.data_count = 3, .network = {.seed = seed, .jitter_ns = kMillisecond}});
    std::vector<std::uint32_t> next(2);  // from nodes 1 and 2, at node 0
    for (std::uint32_t i = 0; i < kCount; ++i) {
      fleet.node(1).SendNotice(1, 0, BytesOf(i, i % 7 == 0 ? kNoticeBytesMax : 9));
      fleet.node(2).SendNotice(1, 0, BytesOf(i));
    }
    const auto take = [&] {
      for (const Notice& notice : Take(fleet, 0)) {
        ASSERT_EQ(notice.group, 1U);
        ASSERT_EQ(NumberOf(notice), next[notice.member - 1]++) << "seed " << seed;
      }
    };
    while (fleet.Step()) take();
    take();
    EXPECT_EQ(next[0], kCount) << "seed " << seed;
    EXPECT_EQ(next[1], kCount) << "seed " << seed;
    EXPECT_EQ(fleet.network().open_count(), 0U);
  }
}

// Both ways at once, so that most of what was taken is said with a notice.
TEST(ExchangeNotices, GoBothWaysBesideTransfers) {
  Fleet fleet({.network = {.seed = 3, .jitter_ns = kMillisecond}});
  FleetTransfer sum(Collective::kAllReduce, DType::kInt32, Reduction::kSum, 40'000, 2, 5);
  const auto expected = sum.Expected();
  fleet.PostEverywhere(sum.transfer());
  std::vector<std::uint32_t> next(2);
  for (std::uint32_t i = 0; i < 200; ++i) {
    fleet.node(0).SendNotice(1, 1, BytesOf(i));
    fleet.node(1).SendNotice(1, 0, BytesOf(i));
    fleet.Step();
    for (std::uint32_t node = 0; node < 2; ++node) {
      for (const Notice& notice : Take(fleet, node)) EXPECT_EQ(NumberOf(notice), next[node]++);
    }
  }
  bool more = true;
  while (more) {
    more = fleet.Step();
    for (std::uint32_t node = 0; node < 2; ++node) {
      for (const Notice& notice : Take(fleet, node)) EXPECT_EQ(NumberOf(notice), next[node]++);
    }
  }
  EXPECT_EQ(next, (std::vector<std::uint32_t>{200, 200}));
  EXPECT_EQ(sum.members().Contents(), expected);
}

TEST(ExchangeNotices, WaitAtTheirSenderWhileNobodyTakesThem) {
  Fleet fleet({});
  for (std::uint32_t i = 0; i < 3 * NoticeLinks::kNoticesWindow; ++i) {
    fleet.node(1).SendNotice(1, 0, BytesOf(i));
  }
  fleet.RunToTheEnd();
  EXPECT_EQ(fleet.node(1).counters().messages_sent, NoticeLinks::kNoticesWindow);
  EXPECT_EQ(Take(fleet, 0).size(), NoticeLinks::kNoticesWindow);
  fleet.RunToTheEnd();
  EXPECT_EQ(Take(fleet, 0).size(), NoticeLinks::kNoticesWindow);
}

TEST(ExchangeNotices, ThatNoHonestNodeSendsFailTheGroup) {
  const std::vector<std::byte> some(9);
  const std::vector<std::byte> none;
  const std::vector<std::byte> large(kNoticeBytesMax + 1);
  MessageHeader of_no_kind = HeaderOf(0);
  of_no_kind.round = 2;
  const std::vector<std::pair<MessageHeader, std::vector<std::byte>>> lies = {
      {HeaderOf(NoticeLinks::kNoticesWindow), some},  // beyond the window
      {HeaderOf(0, 1), some},                         // has taken what was never sent
      {HeaderOf(0), none},
      {HeaderOf(0), large},
      {of_no_kind, some}};
  for (const auto& [header, bytes] : lies) {
    Fleet fleet({});
    fleet.network().Inject("a", header, bytes);
    fleet.RunToTheEnd();
    const std::vector<Notice> taken = Take(fleet, 0);
    ASSERT_EQ(taken.size(), 1U);
    ASSERT_TRUE(taken[0].failure.has_value());
    EXPECT_EQ(taken[0].failure->code(), Code::kMismatch);
    EXPECT_TRUE(Take(fleet, 0).empty()) << "it is said once";
  }
}

TEST(ExchangeNotices, ThatComeTwiceAreDropped) {
  Fleet fleet({});
  fleet.network().Inject("a", HeaderOf(1), BytesOf(1));
  fleet.network().Inject("a", HeaderOf(1), BytesOf(2));
  fleet.network().Inject("a", HeaderOf(0), BytesOf(0));
  fleet.RunToTheEnd();
  const std::vector<Notice> taken = Take(fleet, 0);
  ASSERT_EQ(taken.size(), 2U);
  EXPECT_EQ(NumberOf(taken[1]), 1U);
  fleet.network().Inject("a", HeaderOf(0), BytesOf(3));
  fleet.RunToTheEnd();
  EXPECT_TRUE(Take(fleet, 0).empty());
  EXPECT_EQ(fleet.node(0).counters().messages_dropped, 2U);
}

TEST(ExchangeNotices, OfAMemberThatIsNoneAreDropped) {
  Fleet fleet({});
  MessageHeader elsewhere = HeaderOf(0);
  elsewhere.root = 1;
  fleet.network().Inject("a", elsewhere, std::vector<std::byte>(9));
  fleet.RunToTheEnd();
  EXPECT_EQ(fleet.node(0).counters().messages_dropped, 1U);
  EXPECT_TRUE(Take(fleet, 0).empty());
}

TEST(ExchangeNotices, EndWithTheLinksAtAnyMoment) {
  for (int steps = 0; steps < 60; ++steps) {
    Fleet fleet({.network = {.ns_per_byte = kNsPerByte}});
    for (std::uint32_t i = 0; i < 40; ++i) fleet.node(0).SendNotice(1, 1, BytesOf(i, 5000));
    for (int step = 0; step < steps; ++step) fleet.Step();
    fleet.node(0).CloseGroup(1, "the job has ended");
    fleet.RunToTheEnd();
    EXPECT_TRUE(Take(fleet, 0).empty());
    std::uint32_t next = 0;
    bool failed = false;
    for (const Notice& notice : Take(fleet, 1)) {
      ASSERT_FALSE(failed) << "it is said last";
      failed = notice.failure.has_value();
      if (failed) continue;
      EXPECT_EQ(NumberOf(notice), next++) << "after " << steps;
    }
    EXPECT_EQ(fleet.network().open_count(), 0U);
    fleet.node(0).SendNotice(1, 1, BytesOf(0));  // of a group that is gone
  }
}

}  // namespace
}  // namespace headrace::transport
