#include "client/lib/operations.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "tests/support/expect_text.h"
#include "tests/unit/client/service_end.h"

namespace headrace::client {
namespace {

class OperationsTest : public testing::Test {
 protected:
  ipc::Channel::Created created_ = ipc::Channel::Create().value();
  UniqueFd doorbell_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  Operations operations_{created_.channel.layout(), doorbell_.get(), 0};
  ServiceEnd service_{created_.channel.layout()};

  std::uint64_t Post() { return operations_.Post(ipc::Record{.kind = 5, .dtype = 7}).value(); }
  std::uint64_t Rings() const {
    std::uint64_t rings = 0;
    return ::read(doorbell_.get(), &rings, sizeof rings) == sizeof rings ? rings : 0;
  }
  Code CodeOf(std::uint64_t sequence) const { return operations_.OutcomeOf(sequence).code; }
};

TEST_F(OperationsTest, NumbersOperationsAndCarriesTheirRecords) {
  ipc::Record record{.kind = 1, .dtype = 3, .tensor = 9, .offset = 16, .count = 5};
  EXPECT_EQ(operations_.Post(record).value(), 1U);
  EXPECT_EQ(Post(), 2U);
  const ipc::Record taken = service_.Take();
  EXPECT_EQ(taken.tensor, 9U);
  EXPECT_EQ(taken.offset, 16U);
  EXPECT_EQ(taken.commit, 1U);
  EXPECT_GT(taken.posted_ns, 0U);
  EXPECT_EQ(operations_.posted(), 2U);
}

TEST_F(OperationsTest, RingTheDoorbellOnlyWhenTheServiceSleeps) {
  Post();
  EXPECT_EQ(Rings(), 0U);
  service_.Take();
  ASSERT_TRUE(service_.Sleep());
  Post();
  Post();
  EXPECT_EQ(Rings(), 1U);
  EXPECT_EQ(operations_.counters().doorbells.load(), 1U);
}

TEST_F(OperationsTest, TellEndedFromOpenAndFromNeverPosted) {
  const std::uint64_t first = Post();
  EXPECT_FALSE(operations_.HasEnded(first).value());
  EXPECT_FALSE(operations_.WaitForEnd(first, 0).value());
  EXPECT_FALSE(operations_.WaitForEnd(first, kMillisecond).value());
  service_.Serve();
  EXPECT_TRUE(operations_.WaitForEnd(first, -1).value());
  EXPECT_EQ(operations_.HasEnded(0).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(operations_.WaitForEnd(2, 0).error().code(), Code::kInvalidArgument);
}

TEST_F(OperationsTest, CountTheirWaitsInAnotherSessionThatMayEndFirst) {
  auto other_created = ipc::Channel::Create().value();
  auto renewed = ipc::Channel::Create().value();
  const auto waits = [](const ipc::Channel::Created& at) {
    return at.channel.layout().header.client_waits_elsewhere.load();
  };
  const auto waited_ns = [](const ipc::Channel::Created& at) {
    return at.channel.layout().header.client_waited_ns.load();
  };
  auto other = std::make_unique<Operations>(other_created.channel.layout(), doorbell_.get(), 0);
  EXPECT_EQ(waits(other_created), 0U);
  operations_.CountWaitsIn(*other);
  EXPECT_EQ(waits(other_created), 1U);
  const std::uint64_t first = Post();
  EXPECT_FALSE(operations_.WaitForEnd(first, kMillisecond).value());
  EXPECT_GE(waited_ns(created_), static_cast<std::uint64_t>(kMillisecond));
  EXPECT_EQ(waited_ns(other_created), 0U) << "the wait is not over, and goes on in parts";
  EXPECT_EQ(waits(created_), 0U);
  // What is under way is seen in the channel in which the other session goes on.
  std::jthread waiting([this, first] { EXPECT_TRUE(operations_.WaitForEnd(first, -1).value()); });
  while (waits(other_created) != 2) std::this_thread::yield();
  other->Renew(renewed.channel.layout(), doorbell_.get());
  EXPECT_EQ(waits(renewed), 2U);
  service_.Serve();
  waiting.join();
  EXPECT_EQ(waits(renewed), 1U);
  EXPECT_GE(waited_ns(renewed), static_cast<std::uint64_t>(kMillisecond)) << "all parts of it";
  other.reset();
  const std::uint64_t before_ns = waited_ns(renewed);
  EXPECT_FALSE(operations_.WaitForEnd(Post(), kMillisecond).value());
  EXPECT_EQ(waited_ns(renewed), before_ns);
}

TEST_F(OperationsTest, ReportTheServicesOwnWords) {
  Post();
  service_.Serve(Code::kPeerLost, "rank 3 (pid 1234) exited");
  const ipc::Outcome outcome = operations_.OutcomeOf(1);
  EXPECT_EQ(outcome.code, Code::kPeerLost);
  EXPECT_EQ(outcome.text, "rank 3 (pid 1234) exited");
}

TEST_F(OperationsTest, WakeEveryWaiter) {
  const std::uint64_t sequence = Post();
  std::vector<std::thread> waiters;
  for (int i = 0; i < 4; ++i) {
    waiters.emplace_back(
        [this, sequence] { EXPECT_TRUE(operations_.WaitForEnd(sequence, -1).value()); });
  }
  service_.Serve();
  for (std::thread& waiter : waiters) waiter.join();
}

TEST_F(OperationsTest, SpinBeforeSleepingWhenAskedTo) {
  Operations spinning(created_.channel.layout(), doorbell_.get(), kMillisecond);
  const std::uint64_t sequence = spinning.Post(ipc::Record{.kind = 5}).value();
  EXPECT_FALSE(spinning.WaitForEnd(sequence, kMillisecond).value());
  service_.Serve();
  EXPECT_TRUE(spinning.WaitForEnd(sequence, kMillisecond).value());
  EXPECT_GE(spinning.counters().waited_ns.load(), static_cast<std::uint64_t>(kMillisecond));
}

// The slot of a failed operation is used again before anybody asks how it ended.
TEST_F(OperationsTest, KeepAFailureWhenItsSlotIsUsedAgain) {
  Post();
  service_.Serve(Code::kMismatch, "rank 0 posted 4 elements, rank 1 posted 5");
  for (std::uint64_t i = 0; i < 3 * ipc::kOperationsMax; ++i) {
    Post();
    service_.Serve();
  }
  const ipc::Outcome outcome = operations_.OutcomeOf(1);
  EXPECT_EQ(outcome.code, Code::kMismatch);
  EXPECT_EQ(outcome.text, "rank 0 posted 4 elements, rank 1 posted 5");
  EXPECT_EQ(CodeOf(2), Code::kOk);
  EXPECT_EQ(CodeOf(operations_.posted()), Code::kOk);
}

TEST_F(OperationsTest, RefuseToPostWhenTheChannelStaysFull) {
  operations_.BoundFullWait(5 * kMillisecond);
  for (std::uint64_t i = 0; i < ipc::kOperationsMax; ++i) Post();
  const Result<std::uint64_t> posted = operations_.Post(ipc::Record{.kind = 5});
  ASSERT_FALSE(posted.ok());
  EXPECT_EQ(posted.error().code(), Code::kBusy);
  EXPECT_EQ(operations_.posted(), ipc::kOperationsMax);
  // It is back-pressure, not the end: room for one makes room for one.
  service_.Serve();
  EXPECT_EQ(Post(), ipc::kOperationsMax + 1);
}

TEST_F(OperationsTest, PostAsSoonAsTheOldestEnds) {
  for (std::uint64_t i = 0; i < ipc::kOperationsMax; ++i) Post();
  std::thread poster([this] { EXPECT_EQ(Post(), ipc::kOperationsMax + 1); });
  while (operations_.counters().full_waits.load() == 0) std::this_thread::yield();
  service_.Serve(Code::kTimeout, "late");
  poster.join();
  EXPECT_EQ(CodeOf(1), Code::kTimeout);
}

TEST_F(OperationsTest, EndEverythingWithOneNamedErrorWhenTheServiceIsLost) {
  Post();
  Post();
  Post();
  service_.Serve();
  service_.Serve(Code::kTimeout, "late");
  std::thread waiter([this] { EXPECT_TRUE(operations_.WaitForEnd(3, -1).value()); });
  operations_.Lose(Error(Code::kUnavailable, "the service at /s (pid 5) went away"));
  waiter.join();
  EXPECT_EQ(CodeOf(1), Code::kOk);
  EXPECT_EQ(CodeOf(2), Code::kTimeout);
  EXPECT_EQ(operations_.OutcomeOf(3).text, "the service at /s (pid 5) went away");
  const Result<std::uint64_t> later = operations_.Post(ipc::Record{.kind = 5});
  ASSERT_FALSE(later.ok());
  EXPECT_EQ(later.error().code(), Code::kUnavailable);
  EXPECT_EQ(later.error().text(), "the service at /s (pid 5) went away");
}

TEST_F(OperationsTest, EndAPostThatWaitsForRoomWhenTheServiceIsLost) {
  for (std::uint64_t i = 0; i < ipc::kOperationsMax; ++i) Post();
  std::thread poster([this] {
    const Result<std::uint64_t> posted = operations_.Post(ipc::Record{.kind = 5});
    ASSERT_FALSE(posted.ok());
    EXPECT_EQ(posted.error().text(), "gone");
  });
  while (operations_.counters().full_waits.load() == 0) std::this_thread::yield();
  operations_.Lose(Error(Code::kUnavailable, "gone"));
  poster.join();
}

TEST_F(OperationsTest, NameTheOldestThatIsOpen) {
  EXPECT_EQ(operations_.OldestOpen(), 0U);
  Post();
  Post();
  EXPECT_EQ(operations_.OldestOpen(), 1U);
  service_.Serve();
  EXPECT_EQ(operations_.OldestOpen(), 2U);
  service_.Serve(Code::kTimeout, "late");
  EXPECT_EQ(operations_.OldestOpen(), 0U);
  for (std::uint64_t i = 0; i < 2 * ipc::kOperationsMax; ++i) {
    Post();
    service_.Serve();
  }
  EXPECT_EQ(operations_.OldestOpen(), 0U);
  EXPECT_EQ(operations_.OldestOpen() + Post(), 2 * ipc::kOperationsMax + 3);
  EXPECT_EQ(operations_.OldestOpen(), 2 * ipc::kOperationsMax + 3);
}

TEST_F(OperationsTest, KeepTheLossWhenAServiceThatWasGivenUpGoesOn) {
  Post();
  Post();
  service_.Serve();
  operations_.Lose(Error(Code::kUnavailable, "it has not answered"));
  EXPECT_EQ(CodeOf(2), Code::kUnavailable);
  service_.Serve();  // it was only stopped, and ends the second operation well
  EXPECT_EQ(CodeOf(1), Code::kOk);
  EXPECT_EQ(CodeOf(2), Code::kUnavailable);
  EXPECT_EQ(operations_.OutcomeOf(2).text, "it has not answered");
  EXPECT_FALSE(operations_.CheckThere().ok());
}

TEST_F(OperationsTest, KeepTheServicesReasonForEndingUnavailable) {
  Post();
  service_.Serve(Code::kUnavailable, "the service is draining");
  operations_.Lose(Error(Code::kUnavailable, "gone"));
  EXPECT_EQ(operations_.OutcomeOf(1).text, "the service is draining");
}

// Threads post while another end serves them: every number is given once, none is lost.
TEST_F(OperationsTest, LetManyThreadsPostAndWait) {
  constexpr int kThreads = 4;
  constexpr int kEach = 2000;
  std::thread server([this] {
    for (int served = 0; served < kThreads * kEach;) {
      if (!service_.HasRecord()) {
        std::this_thread::yield();
        continue;
      }
      const bool fails = served++ % 100 == 99;
      service_.Serve(fails ? Code::kTimeout : Code::kOk, "late");
    }
  });
  std::atomic<int> failures = 0;
  std::vector<std::thread> posters;
  for (int i = 0; i < kThreads; ++i) {
    posters.emplace_back([this, &failures] {
      for (int n = 0; n < kEach; ++n) {
        const std::uint64_t sequence = Post();
        EXPECT_TRUE(operations_.WaitForEnd(sequence, -1).value());
        if (CodeOf(sequence) == Code::kTimeout) ++failures;
      }
    });
  }
  for (std::thread& poster : posters) poster.join();
  server.join();
  EXPECT_EQ(failures, kThreads * kEach / 100);
}

TEST(UnclaimedFailures, NeverCallAForgottenFailureASuccess) {
  UnclaimedFailures failures;
  const std::uint64_t most = UnclaimedFailures::kFailuresMax;
  for (std::uint64_t i = 1; i <= most + 1; ++i) failures.Keep(i * 2, {Code::kTimeout, "late"});
  EXPECT_EQ(failures.count(), most);
  EXPECT_EQ(failures.Find(2).code, Code::kExhausted);
  EXPECT_EQ(failures.Find(1).code, Code::kExhausted);
  EXPECT_EQ(failures.Find(3).code, Code::kOk);
  EXPECT_EQ(failures.Find(4).code, Code::kTimeout);
}

// Keeps what it was promised for, until the test stores it.
class HeldSignal final : public ReadySignal {
 public:
  Status Promise(std::uint64_t sequence) override {
    if (refusal) return *refusal;
    promised = sequence;
    if (during) during();
    return {};
  }

  std::uint64_t promised = 0;
  std::optional<Error> refusal;
  std::function<void()> during;
};

TEST_F(OperationsTest, PromisesTheNumberOfARecordThatAwaitsItsWord) {
  HeldSignal signal;
  EXPECT_EQ(operations_.PostWhenReady(ipc::Record{.kind = 1, .dtype = 1}, signal).value(), 1U);
  EXPECT_EQ(signal.promised, 1U);
  EXPECT_EQ(service_.Take().flags, ipc::kRecordAwaitsWord);
}

TEST_F(OperationsTest, PostNothingWhenThePromiseIsRefused) {
  HeldSignal signal;
  signal.refusal = Error(Code::kBusy, "too many streams");
  EXPECT_EQ(operations_.PostWhenReady({}, signal).error().text(), "too many streams");
  EXPECT_FALSE(service_.HasRecord());
  EXPECT_EQ(Post(), 1U);
}

TEST_F(OperationsTest, DoNotLetALatePromiseTakeBackANewerOne) {
  HeldSignal signal;
  EXPECT_EQ(operations_.PostWhenReady({}, signal).value(), 1U);
  service_.Serve(Code::kTimeout, "late");
  for (std::uint64_t i = 1; i < ipc::kOperationsMax; ++i) {
    Post();
    service_.Serve();
  }
  const auto refused = operations_.PostWhenReady({}, signal);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kBusy);
  EXPECT_TEXT(refused.error().text(), "operation 1");
  created_.channel.layout().ready[1].store(1);
  EXPECT_EQ(operations_.PostWhenReady({}, signal).value(), ipc::kOperationsMax + 1);
}

TEST_F(OperationsTest, KeepTheirOrderWhileAPromiseIsMade) {
  HeldSignal signal;
  std::thread other;
  signal.during = [&] { other = std::thread([this] { EXPECT_EQ(Post(), 2U); }); };
  EXPECT_EQ(operations_.PostWhenReady({}, signal).value(), 1U);
  other.join();
  EXPECT_EQ(service_.Take().flags, ipc::kRecordAwaitsWord);
  EXPECT_EQ(service_.Take().flags, 0);
}

// A driver may make the promise wait until the GPU has done something that only the loss lets it
// do.
TEST_F(OperationsTest, LoseTheServiceWhileAPromiseIsMade) {
  HeldSignal signal;
  const std::uint64_t open = Post();
  signal.during = [&] {
    operations_.Lose(Error(Code::kUnavailable, "it is gone"));
    EXPECT_TRUE(operations_.HasEnded(open).value());
  };
  EXPECT_EQ(operations_.PostWhenReady({}, signal).error().text(), "it is gone");
  EXPECT_EQ(operations_.posted(), 1U);
}

}  // namespace
}  // namespace headrace::client
