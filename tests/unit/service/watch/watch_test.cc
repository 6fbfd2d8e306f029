// Watch: keeps the ring of events, makes plans.
#include "service/watch/watch.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/expect_text.h"
#include "tests/support/recording.h"

namespace headrace::service {
namespace {

class WatchTest : public ::testing::Test {
 protected:
  template <typename Message>
  void Send(Message message) {
    ASSERT_TRUE(watch_.inbox().Send(std::move(message)));
  }

  std::unique_ptr<ipc::BoardLayout> board_ = std::make_unique<ipc::BoardLayout>();
  support::CountingWakeable wakeable_;
  support::RecordingInbox<RpcMessage> rpc_;
  support::RecordingInbox<PeersMessage> peers_;
  std::vector<std::string> log_;
  Watch watch_{wakeable_, rpc_, peers_, *board_,
               [this](const Event& event) { log_.push_back(event.text); }};
};

TEST_F(WatchTest, AnswersPeersThatAreBehindOnceItHasRoom) {
  peers_.full = true;
  for (RequestToken token = 1; token <= 2; ++token) {
    Send(MakePlan{.token = token, .profile = {}, .route = {}, .present = nullptr});
  }
  EXPECT_TRUE(watch_.DoWork(0));
  EXPECT_TRUE(peers_.messages.empty());
  EXPECT_EQ(watch_.NextDeadline(), kMillisecond);
  peers_.full = false;
  EXPECT_TRUE(watch_.DoWork(kMillisecond));
  const auto made = peers_.Of<PlanMade>();
  ASSERT_EQ(made.size(), 2U);
  EXPECT_EQ(made[0]->token, 1U);
  EXPECT_EQ(watch_.NextDeadline(), kNever);
}

// A job whose iterations are short asks for plans without end.
TEST_F(WatchTest, ReplansOneJobAtATimeAndRestsInBetween) {
  for (RequestToken token = 1; token <= 3; ++token) {
    Send(MakePlan{.token = token, .profile = {}, .route = {}, .version = 2, .present = nullptr});
  }
  Send(MakePlan{.token = 4, .profile = {}, .route = {}, .present = nullptr});
  EXPECT_TRUE(watch_.DoWork(kSecond));
  const auto tokens = [this] {
    std::vector<RequestToken> made;
    for (const PlanMade* each : peers_.Of<PlanMade>()) made.push_back(each->token);
    return made;
  };
  EXPECT_EQ(tokens(), (std::vector<RequestToken>{4, 1})) << "first plans do not wait";
  // It took 10 ms.
  constexpr TimeNs kMadeNs = kSecond + 10 * kMillisecond;
  EXPECT_FALSE(watch_.DoWork(kMadeNs));
  EXPECT_EQ(watch_.NextDeadline(), kMadeNs + 4 * 10 * kMillisecond);
  EXPECT_TRUE(watch_.DoWork(watch_.NextDeadline()));
  EXPECT_TRUE(watch_.DoWork(watch_.NextDeadline()));
  EXPECT_EQ(tokens(), (std::vector<RequestToken>{4, 1, 2, 3}));
  EXPECT_EQ(watch_.NextDeadline(), kNever);
}

TEST_F(WatchTest, LogsEventsAndPutsThemOnTheBoard) {
  Send(Event{Code::kTimeout, JobId{4}, "job a: operation 1 timed out"});
  watch_.DoWork(0);
  EXPECT_EQ(log_, std::vector<std::string>{"job a: operation 1 timed out"});
  const ipc::EventRow row = *ipc::ReadRow(board_->events[0]);
  EXPECT_EQ(row.number, 1U);
  EXPECT_EQ(row.code, static_cast<std::uint32_t>(Code::kTimeout));
  EXPECT_EQ(row.job_id, 4U);
  EXPECT_TEXT(ipc::GetText(row.text), "operation 1");
  EXPECT_GT(row.at_unix_ns, 1'700'000'000 * kSecond);
}

TEST_F(WatchTest, LeavesOutWhatOneUidCausesTooOften) {
  constexpr TimeNs kNow = 1000 * kSecond;
  for (int i = 0; i < 1000; ++i) Send(Event{Code::kOk, {}, "attached", 1000});
  Send(Event{Code::kOk, {}, "somebody else", 1001});
  watch_.DoWork(kNow);
  ASSERT_EQ(log_.size(), kEventsPerUidMax + 1U);
  EXPECT_EQ(log_.back(), "somebody else");
  EXPECT_EQ(watch_.NextDeadline(), kNow + kEventsWindow);
  watch_.DoWork(kNow + kEventsWindow);
  ASSERT_EQ(log_.size(), kEventsPerUidMax + 2U);
  EXPECT_TEXT(log_.back(), "uid 1000", "936");
  const std::size_t last = log_.size() - 1;
  EXPECT_EQ(ipc::GetText(ipc::ReadRow(board_->events[last])->text), log_.back());
  EXPECT_EQ(watch_.NextDeadline(), kNever);
}

TEST_F(WatchTest, KeepsTheLastEventsInARing) {
  constexpr std::size_t kEvents = ipc::kEventRowsMax + 5;
  for (std::size_t i = 1; i <= kEvents; ++i) Send(Event{Code::kOk, {}, std::to_string(i)});
  watch_.DoWork(0);
  for (std::size_t number = kEvents - ipc::kEventRowsMax + 1; number <= kEvents; ++number) {
    const ipc::EventRow row = *ipc::ReadRow(board_->events[(number - 1) % ipc::kEventRowsMax]);
    EXPECT_EQ(row.number, number);
    EXPECT_EQ(ipc::GetText(row.text), std::to_string(number));
  }
}

TEST_F(WatchTest, CutsATextThatIsTooLongForTheBoardAndLogsItWhole) {
  const std::string text(1000, 'x');
  Send(Event{Code::kOk, {}, text});
  watch_.DoWork(0);
  EXPECT_EQ(log_.at(0), text);
  EXPECT_EQ(ipc::GetText(ipc::ReadRow(board_->events[0])->text), std::string(255, 'x'));
}

TEST_F(WatchTest, SleepsOnlyWhenItsInboxIsEmpty) {
  EXPECT_TRUE(watch_.PrepareToSleep());
  Send(Event{});
  EXPECT_EQ(wakeable_.wakes, 1);
  EXPECT_FALSE(watch_.PrepareToSleep());
  watch_.DoWork(0);
  EXPECT_TRUE(watch_.PrepareToSleep());
  EXPECT_EQ(watch_.NextDeadline(), kNever);
}

// Two tensors on a lane with that startup.
MakePlan RequestFor(plan::Policy policy, double startup_s) {
  MakePlan request;
  request.token = 9;
  request.policy = policy;
  request.version = 3;
  for (const char* name : {"first", "second"}) {
    request.profile.tensors.push_back(
        {.name = name, .elements = 1'000'000, .backward_s = 1e-3, .forward_s = 1e-3});
  }
  request.route = plan::AllReduceRoute(plan::Affine(startup_s, 1e-9));
  return request;
}

TEST_F(WatchTest, MakesPlans) {
  Send(RequestFor(plan::Policy::kWfbp, 1e-3));
  EXPECT_TRUE(watch_.DoWork(0));
  const PlanMade& made = *peers_.Of<PlanMade>().at(0);
  EXPECT_EQ(made.token, 9U);
  ASSERT_TRUE(made.plan.ok()) << made.plan.error().text();
  EXPECT_EQ((*made.plan)->version, 3U);
  EXPECT_EQ((*made.plan)->blocks.size(), 2U);
}

TEST_F(WatchTest, KeepsThePlanInForceUnlessAnotherIsFasterByTheMargin) {
  Send(RequestFor(plan::Policy::kExact, 1e-3));
  watch_.DoWork(0);
  const auto present = *peers_.Of<PlanMade>().at(0)->plan;
  for (const double startup_s : {1e-3, 1e-3 + 1e-6, 1e-1}) {
    MakePlan request = RequestFor(plan::Policy::kExact, startup_s);
    // In several blocks; with a high startup one is far better.
    plan::Plan several = *present;
    several.blocks = plan::MakePlan(plan::Policy::kWfbp, request.profile, request.route)->blocks;
    request.present = startup_s < 1e-2 ? present : std::make_shared<const plan::Plan>(several);
    request.margin = 0.02;
    Send(std::move(request));
  }
  while (watch_.DoWork(0)) {
  }
  const auto made = peers_.Of<PlanMade>();
  ASSERT_EQ(made.size(), 4U);
  EXPECT_EQ(*made[1]->plan, nullptr);
  EXPECT_EQ(*made[2]->plan, nullptr) << "faster, but by less than the margin";
  ASSERT_NE(*made[3]->plan, nullptr);
  EXPECT_EQ((*made[3]->plan)->blocks.size(), 1U);
}

TEST_F(WatchTest, SaysWhyAPlanCannotBeMade) {
  MakePlan request = RequestFor(plan::Policy::kExact, 1e-3);
  request.profile.tensors[1].backward_s = -1;
  Send(std::move(request));
  watch_.DoWork(0);
  const PlanMade& made = *peers_.Of<PlanMade>().at(0);
  ASSERT_FALSE(made.plan.ok());
  EXPECT_NE(made.plan.error().text().find("second"), std::string::npos);
}

}  // namespace
}  // namespace headrace::service
