// The service is stopped for a while, or its machine suspended: what was open goes on.
#include "service/dispatch/standstill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/unit/service/dispatch/expect.h"
#include "tests/unit/service/dispatch/planned.h"

namespace headrace::support {
namespace {

using service::Standstill;

ipc::Record SumFrom(std::uint64_t offset) {
  return OnSegment(Collective::kAllReduce, DType::kFloat32, 16, offset);
}

std::size_t EventsWith(HandDrivenNode& node, const std::string& part) {
  return static_cast<std::size_t>(std::ranges::count_if(
      node.watch_tap().events,
      [&part](const std::string& event) { return event.find(part) != std::string::npos; }));
}

TEST(Standstill, IsATurnThatComesMuchLaterThanItWasDue) {
  Standstill standstill;
  EXPECT_EQ(standstill.BeginTurn(100 * kSecond), 0) << "nobody waited for the first";
  standstill.EndTurn(100 * kSecond);
  standstill.Await(101 * kSecond);
  EXPECT_EQ(standstill.BeginTurn(100 * kSecond + kMillisecond), 0) << "woken early";
  standstill.EndTurn(101 * kSecond);
  standstill.Await(102 * kSecond);
  EXPECT_EQ(standstill.BeginTurn(102 * kSecond + Standstill::kLeast - 1), 0);
  standstill.EndTurn(103 * kSecond);
  standstill.Await(104 * kSecond);
  EXPECT_EQ(standstill.BeginTurn(110 * kSecond), 7 * kSecond) << "all since the last turn";
  standstill.EndTurn(110 * kSecond);
  standstill.Await(kNever);
  EXPECT_EQ(standstill.BeginTurn(500 * kSecond), 0) << "nothing was due";
}

TEST(Standstill, CountsTheDelayAloneWhereEveryTurnComesLate) {
  Standstill standstill;
  TimeNs now = 0;
  TimeNs moved = 0;
  for (int turn = 0; turn < 10; ++turn) {
    standstill.EndTurn(now);
    standstill.Await(now + kSecond);
    now += 2 * kSecond;
    moved += standstill.BeginTurn(now);
  }
  EXPECT_EQ(moved, 11 * kSecond) << "or what is open would never end";
  standstill.EndTurn(now);
  standstill.Await(now + kSecond);
  now += kSecond;
  EXPECT_EQ(standstill.BeginTurn(now), 0);
  standstill.EndTurn(now);
  standstill.Await(now + kSecond);
  EXPECT_EQ(standstill.BeginTurn(now + 2 * kSecond), 2 * kSecond) << "after one in time again";
}

TEST(Dispatch, ReadsWhatCameDuringAStandstillBeforeAnythingExpires) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kPairFor1s, 0);
  ClientEnd& b = node.Attach(kPairFor1s, 1);
  constexpr std::uint64_t kManyElements = 100;  // more than one turn reads
  for (std::uint64_t i = 0; i < kManyElements; ++i) a.Post(SumFrom(i * 64));
  node.Settle();
  for (std::uint64_t i = 0; i < kManyElements; ++i) b.Post(SumFrom(i * 64));
  node.Stall(3600 * kSecond);
  for (std::uint64_t number = 1; number <= kManyElements; ++number) {
    ExpectOk(a, number);
    ExpectOk(b, number);
  }
  EXPECT_EQ(EventsWith(node, "3600.0 s"), 1U);
}

TEST(Dispatch, GivesBackTheTimeThatAStandstillTook) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kPairFor1s, 0);
  ClientEnd& b = node.Attach(kPairFor1s, 1);
  a.Post(SumFrom(0));
  b.Post(SumFrom(0));
  a.Post(SumFrom(64));
  node.Settle();
  node.Advance(300 * kMillisecond);
  node.dispatch().DoWork(node.now);  // the last turn before it
  node.Stall(10 * kSecond);
  ExpectOpen(a, 2);
  node.Advance(700 * kMillisecond - 1);
  ExpectOpen(a, 2);
  node.Advance(1);
  ExpectFailed(a, 2, Code::kTimeout, {"rank 1", "pid 1001"});
}

TEST(Dispatch, GivesGradientsTheirTimeBackToo) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kPairFor1s, 0);
  ClientEnd& b = node.Attach(kPairFor1s, 1);
  const auto layout = PackedLayout({10, 20});
  for (ClientEnd* rank : {&a, &b}) HandIn(node, *rank, layout);
  Adopt(node, kPairFor1s.id, PlanOf({{{1, 0, 20}}, {{0, 0, 10}}}));
  node.Settle();
  for (const std::uint32_t tensor : {0U, 1U}) PostGradient(a, *layout, tensor);
  node.Settle();
  node.Stall(30 * kSecond);
  ExpectOpen(a, 1);
  for (const std::uint32_t tensor : {0U, 1U}) PostGradient(b, *layout, tensor);
  node.Settle();
  for (const std::uint64_t number : {1U, 2U}) {
    ExpectOk(a, number);
    ExpectOk(b, number);
  }
  PostGradient(a, *layout, 0);
  node.Settle();
  node.Advance(kSecond);
  ExpectFailed(a, 3, Code::kTimeout, {"gradient 0", "iteration 2"});
}

TEST(Dispatch, DoesNotBlameARankForAStandstill) {
  HandDrivenNode node;
  node.dispatch().ReportLate(2 * kSecond);
  const JobSpec pair{.world_size = 2, .timeout_ms = 60'000};
  ClientEnd& a = node.Attach(pair, 0);
  node.Attach(pair, 1);
  a.Post(SumFrom(0));
  node.Settle();
  node.Advance(kSecond);
  node.Stall(30 * kSecond);
  EXPECT_EQ(node.Counters().late_reports, 0U);
  node.Advance(2 * kSecond);
  EXPECT_EQ(node.Counters().late_reports, 1U);
}

TEST(Dispatch, TakesATurnASecondWhileSomethingIsOpen) {
  HandDrivenNode node;
  const JobSpec pair{.world_size = 2, .timeout_ms = 60'000};
  ClientEnd& a = node.Attach(pair, 0);
  node.Attach(pair, 1);
  node.Settle();
  EXPECT_EQ(node.dispatch().NextDeadline(), kNever);
  a.Post(SumFrom(0));
  node.Settle();
  EXPECT_EQ(node.dispatch().NextDeadline(), node.now + kSecond);
}

}  // namespace
}  // namespace headrace::support
