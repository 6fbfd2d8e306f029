// The lane: order, patience with a busy transport, cancelling, and sleep.
#include "service/lane/lane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "tests/support/expect_text.h"
#include "tests/support/loopback/loopback_transport.h"
#include "tests/support/observed_transport.h"
#include "tests/support/recording.h"

namespace headrace::service {
namespace {

using support::CountingWakeable;
using support::ObservedTransport;
using support::RecordingInbox;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using transport::LoopbackTransport;
using transport::Transfer;

// Says that all is done, and has done nothing.
class WrongTransport final : public transport::Transport {
 public:
  const transport::Capabilities& capabilities() const override { return capabilities_; }
  [[nodiscard]] transport::PostResult Post(const Transfer& transfer, TimeNs) override {
    tokens_.push_back(transfer.token);
    return transport::PostResult::kAccepted;
  }
  void Cancel(std::uint64_t) override {}
  bool DoWork(TimeNs, std::vector<transport::Completion>& completions) override {
    for (const std::uint64_t token : tokens_) completions.push_back({.token = token});
    tokens_.clear();
    return false;
  }

 private:
  transport::Capabilities capabilities_;
  std::vector<std::uint64_t> tokens_;
};

struct Bench {
  explicit Bench(const transport::LoopbackOptions& options) {
    auto inner = std::make_unique<LoopbackTransport>(options);
    loopback = inner.get();
    observed = std::make_unique<ObservedTransport>(std::move(inner));
    lane = std::make_unique<Lane>(std::uint8_t{3}, "lane3", *observed, waker, wakeable, dispatch);
  }

  void Start(std::uint64_t token, std::uint64_t count = 4) {
    Transfer transfer{.token = token,
                      .kind = Collective::kAllReduce,
                      .dtype = DType::kFloat32,
                      .count = count,
                      .members_count = 1};
    transfer.members[0] = memory.data();
    ASSERT_TRUE(lane->inbox().Send(StartStage{transfer}));
  }
  void Cancel(std::uint64_t token) { ASSERT_TRUE(lane->inbox().Send(CancelStage{token})); }
  void Probe(RequestToken token) { ASSERT_TRUE(lane->inbox().Send(ProbeLane{token})); }
  void Settle() {
    while (lane->DoWork(now)) {
    }
  }
  // Tokens and codes of what was reported, in order; each from this lane.
  std::vector<std::pair<std::uint64_t, Code>> Ended() const {
    std::vector<std::pair<std::uint64_t, Code>> ended;
    for (const StageEnded* message : dispatch.Of<StageEnded>()) {
      EXPECT_EQ(message->lane, 3);
      ended.emplace_back(message->completion.token, message->completion.code);
    }
    return ended;
  }

  TimeNs now = kSecond;
  alignas(8) std::array<std::byte, 4096> memory{};
  CountingWakeable wakeable;
  RecordingInbox<DispatchMessage> dispatch;
  LaneWaker waker{wakeable};
  LoopbackTransport* loopback = nullptr;  // owned by observed
  std::unique_ptr<ObservedTransport> observed;
  std::unique_ptr<Lane> lane;
};

TEST(Lane, RunsStagesInTheOrderTheyCameAndReportsEachEnd) {
  Bench bench({});
  for (std::uint64_t token = 1; token <= 5; ++token) bench.Start(token);
  bench.Settle();
  EXPECT_THAT(bench.observed->accepted, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(bench.Ended(),
              ElementsAre(std::pair(1, Code::kOk), std::pair(2, Code::kOk), std::pair(3, Code::kOk),
                          std::pair(4, Code::kOk), std::pair(5, Code::kOk)));
}

TEST(Lane, ReportsEndsOnceADispatchThatIsBehindHasRoom) {
  Bench bench({});
  bench.dispatch.full = true;
  for (std::uint64_t token = 1; token <= 3; ++token) bench.Start(token);
  bench.Settle();
  EXPECT_TRUE(bench.Ended().empty());
  EXPECT_EQ(bench.lane->NextDeadline(), bench.now + kMillisecond);
  bench.dispatch.full = false;
  bench.now += kMillisecond;
  bench.Settle();
  EXPECT_THAT(bench.Ended(), ElementsAre(std::pair(1U, Code::kOk), std::pair(2U, Code::kOk),
                                         std::pair(3U, Code::kOk)));
  EXPECT_EQ(bench.lane->NextDeadline(), kNever);
}

TEST(Lane, PassesOnTheTimesTheTransportMeasured) {
  Bench bench({.startup_ns = 500});
  bench.Start(1);
  bench.Settle();
  EXPECT_TRUE(bench.Ended().empty());
  bench.now += 500;
  bench.Settle();
  const StageEnded& ended = *bench.dispatch.Of<StageEnded>().at(0);
  EXPECT_EQ(ended.completion.end_ns - ended.completion.begin_ns, 500);
}

TEST(Lane, KeepsTheOrderOfStagesThatABusyTransportDidNotTake) {
  Bench bench({.transfers_max = 2, .startup_ns = 10});
  for (std::uint64_t token = 1; token <= 5; ++token) bench.Start(token);
  bench.Settle();
  EXPECT_THAT(bench.observed->accepted, ElementsAre(1, 2));
  bench.Start(6);
  for (int i = 0; i < 20; ++i) {
    bench.now += 10;
    bench.Settle();
  }
  EXPECT_THAT(bench.observed->accepted, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(bench.Ended().size(), 6U);
}

TEST(Lane, TriesAgainWhenTheTransportWasBusyForNoApparentReason) {
  Bench bench({});
  bench.loopback->AnswerBusy(3);
  bench.Start(1);
  bench.Start(2);
  for (int i = 0; i < 4; ++i) bench.lane->DoWork(bench.now);
  bench.Settle();
  EXPECT_THAT(bench.observed->accepted, ElementsAre(1, 2));
}

TEST(Lane, HoldsManyMoreStagesThanItStartedWithRoomFor) {
  Bench bench({.transfers_max = 1, .startup_ns = 10});
  for (std::uint64_t token = 1; token <= 1000; ++token) bench.Start(token);
  for (int i = 0; i < 1000; ++i) {
    bench.Settle();
    bench.now += 10;
  }
  bench.Settle();
  ASSERT_EQ(bench.observed->accepted.size(), 1000U);
  EXPECT_TRUE(std::ranges::is_sorted(bench.observed->accepted));
  EXPECT_EQ(bench.Ended().size(), 1000U);
}

TEST(Lane, CancelsAStageItStillHoldsWithoutTroublingTheTransport) {
  Bench bench({.transfers_max = 1, .startup_ns = 10});
  for (std::uint64_t token = 1; token <= 3; ++token) bench.Start(token);
  bench.Settle();
  bench.Cancel(2);
  bench.Settle();
  EXPECT_THAT(bench.Ended(), ElementsAre(std::pair(2, Code::kCancelled)));
  EXPECT_TRUE(bench.observed->cancelled.empty());
  bench.now += 100;
  bench.Settle();
  bench.now += 100;
  bench.Settle();
  EXPECT_THAT(bench.observed->accepted, ElementsAre(1, 3));
}

TEST(Lane, CancelsAStageTheTransportHasTaken) {
  Bench bench({.startup_ns = 10});
  bench.Start(1);
  bench.Settle();
  bench.Cancel(1);
  bench.Settle();
  EXPECT_THAT(bench.observed->cancelled, ElementsAre(1));
  EXPECT_THAT(bench.Ended(), ElementsAre(std::pair(1, Code::kCancelled)));
}

TEST(Lane, CancelsAStageThatComesWithItsCancel) {
  Bench bench({});
  bench.Start(1);
  bench.Cancel(1);
  bench.Settle();
  EXPECT_TRUE(bench.observed->accepted.empty());
  EXPECT_THAT(bench.Ended(), ElementsAre(std::pair(1, Code::kCancelled)));
}

TEST(Lane, IgnoresACancelThatComesTooLateAndLetsItsNumberBeUsedAgain) {
  Bench bench({});
  bench.Start(1);
  bench.Settle();
  bench.Cancel(1);
  bench.Start(1);
  bench.Settle();
  EXPECT_THAT(bench.Ended(), ElementsAre(std::pair(1, Code::kOk), std::pair(1, Code::kOk)));
}

TEST(Lane, ReportsWhatTheLinkReported) {
  Bench bench({});
  bench.loopback->Fail(2, Code::kPeerLost, 0);
  bench.Start(1);
  bench.Start(2);
  bench.Settle();
  EXPECT_THAT(bench.Ended(), ElementsAre(std::pair(1, Code::kOk), std::pair(2, Code::kPeerLost)));
}

TEST(Lane, AnswersAProbeAfterTheTransportHasSummedRight) {
  Bench bench({.startup_ns = 10});
  bench.Start(1);
  bench.Probe(70);
  bench.Settle();
  EXPECT_TRUE(bench.dispatch.messages.empty()) << "before anything has moved";
  bench.now += 20;
  bench.Settle();
  bench.now += 20;
  bench.Settle();
  const auto answers = bench.dispatch.Of<LaneAnswered>();
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0]->lane, 3);
  EXPECT_EQ(answers[0]->token, 70U);
  EXPECT_TRUE(answers[0]->status.ok()) << answers[0]->status.error().text();
  EXPECT_THAT(bench.Ended(), ElementsAre(std::pair(1, Code::kOk)))
      << "the probe's sum is no stage of dispatch's";
}

TEST(Lane, ProbesAheadOfStagesThatWaitAndAgainForThoseWhoAskedTooLate) {
  Bench bench({.transfers_max = 1, .startup_ns = 10});
  for (std::uint64_t token = 1; token <= 3; ++token) bench.Start(token);
  bench.Settle();
  bench.Probe(70);
  bench.Settle();
  bench.now += 10;
  bench.Settle();  // stage 1 is over, the sum begins
  bench.Probe(71);
  bench.Settle();
  bench.now += 10;
  bench.Settle();
  ASSERT_EQ(bench.dispatch.Of<LaneAnswered>().size(), 1U) << "71 came after the sum had begun";
  EXPECT_EQ(bench.dispatch.Of<LaneAnswered>()[0]->token, 70U);
  EXPECT_EQ(bench.Ended().size(), 1U);
  for (int i = 0; i < 3; ++i) {
    bench.now += 10;
    bench.Settle();
  }
  ASSERT_EQ(bench.dispatch.Of<LaneAnswered>().size(), 2U);
  EXPECT_EQ(bench.dispatch.Of<LaneAnswered>()[1]->token, 71U);
  EXPECT_THAT(bench.observed->accepted, ElementsAre(1, kOwnToken, kOwnToken, 2, 3));
}

TEST(Lane, SaysWhyAProbeFailed) {
  Bench bench({});
  bench.loopback->Fail(kOwnToken, Code::kUnavailable, 0);
  bench.Probe(70);
  bench.Settle();
  const auto answers = bench.dispatch.Of<LaneAnswered>();
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0]->status.code(), Code::kUnavailable);
  EXPECT_TEXT(answers[0]->status.error().text());
  EXPECT_TRUE(bench.Ended().empty());
}

TEST(Lane, SaysWhatAWrongSumWas) {
  RecordingInbox<DispatchMessage> dispatch;
  CountingWakeable wakeable;
  LaneWaker waker{wakeable};
  WrongTransport wrong;
  Lane lane(3, "lane3", wrong, waker, wakeable, dispatch);
  ASSERT_TRUE(lane.inbox().Send(ProbeLane{70}));
  while (lane.DoWork(kSecond)) {
  }
  const auto answers = dispatch.Of<LaneAnswered>();
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0]->status.code(), Code::kInternal);
  EXPECT_TEXT(answers[0]->status.error().text(), "1000", "2000");
}

TEST(Lane, RefusesMoreProbesThanItCanRememberAndAnswersTheOthers) {
  Bench bench({.startup_ns = 10});
  for (RequestToken token = 0; token < LaneProbe::kAskedMax + 2; ++token) bench.Probe(token);
  bench.Settle();
  const auto refused = bench.dispatch.Of<LaneAnswered>();
  ASSERT_EQ(refused.size(), 2U);
  for (const LaneAnswered* answer : refused) {
    EXPECT_GE(answer->token, LaneProbe::kAskedMax);
    EXPECT_EQ(answer->status.code(), Code::kExhausted);
  }
  bench.now += 10;
  bench.Settle();
  EXPECT_EQ(bench.dispatch.Of<LaneAnswered>().size(), LaneProbe::kAskedMax + 2);
}

TEST(Lane, SaysThatAStageWaitsForNobodyWhereTheTransportKnowsOfNobody) {
  Bench bench({.startup_ns = 10});
  bench.Start(1);
  ASSERT_TRUE(bench.lane->inbox().Send(AskStage{1}));
  bench.Settle();
  const auto waits = bench.dispatch.Of<StageWaits>();
  ASSERT_EQ(waits.size(), 1U);
  EXPECT_EQ(waits[0]->lane, 3);
  EXPECT_EQ(waits[0]->token, 1U);
  EXPECT_EQ(waits[0]->members, 0U);
}

TEST(Lane, DropsAnswersThatDispatchIsTooFarBehindToTake) {
  Bench bench({});
  bench.dispatch.full = true;
  bench.Probe(70);
  ASSERT_TRUE(bench.lane->inbox().Send(AskStage{1}));
  bench.Settle();
  bench.dispatch.full = false;
  bench.Probe(71);
  bench.Settle();
  ASSERT_EQ(bench.dispatch.messages.size(), 1U);
  EXPECT_EQ(bench.dispatch.Of<LaneAnswered>().at(0)->token, 71U);
}

TEST(Lane, DoesNotSleepOverAMessageOrASignal) {
  Bench bench({});
  EXPECT_TRUE(bench.lane->PrepareToSleep());
  bench.Start(1);
  EXPECT_FALSE(bench.lane->PrepareToSleep());
  bench.Settle();
  EXPECT_TRUE(bench.lane->PrepareToSleep());
  const int wakes = bench.wakeable.wakes;
  bench.waker.Wake();  // a thread of the transport has finished something
  EXPECT_EQ(bench.wakeable.wakes, wakes + 1);
  EXPECT_FALSE(bench.lane->PrepareToSleep());
  EXPECT_TRUE(bench.lane->PrepareToSleep()) << "the signal has been taken";
  EXPECT_EQ(bench.lane->NextDeadline(), kNever);
  EXPECT_FALSE(bench.lane->DoWork(bench.now));
}

}  // namespace
}  // namespace headrace::service
