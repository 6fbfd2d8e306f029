// A thread of actors: works while there is work, sleeps when there is none, wakes for what comes.
#include "service/actor/runner.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace headrace::service {
namespace {

// Long enough that a test which needs it is known to be broken, and not merely slow.
constexpr auto kFarOff = std::chrono::seconds(20);

// Takes numbers from its inbox, and can be asked to be called at a time.
class Counter final : public Actor {
 public:
  explicit Counter(Wakeable& thread) : inbox_(thread) {}
  std::string_view name() const override { return "counter"; }

  bool DoWork(TimeNs now) override {
    turns.fetch_add(1);
    inbox_.PopAll(messages_);
    const bool due = now >= deadline.load();
    if (messages_.empty() && !due) return false;
    const std::lock_guard lock(mutex_);
    if (due) deadline.store(kNever);
    expired_ |= due;
    for (const int message : messages_) sum_ += message;
    changed_.notify_all();
    return true;
  }
  bool PrepareToSleep() override { return inbox_.Empty(); }
  void Awake() override {}
  TimeNs NextDeadline() const override { return deadline.load(); }

  InboxWriter<int>& inbox() { return inbox_; }
  // Any thread.
  bool WaitForSum(long sum) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kFarOff, [&] { return sum_ >= sum; });
  }
  bool WaitForDeadline() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kFarOff, [&] { return expired_; });
  }

  std::atomic<TimeNs> deadline = kNever;
  std::atomic<int> turns = 0;

 private:
  Inbox<int> inbox_;
  std::vector<int> messages_;
  std::mutex mutex_;
  std::condition_variable changed_;
  long sum_ = 0;  // guarded by mutex_, as is the next
  bool expired_ = false;
};

class RunnerTest : public ::testing::TestWithParam<TimeNs> {
 protected:
  TimeNs spin() const { return GetParam(); }
  std::unique_ptr<Sleeper> sleeper_ = std::move(Sleeper::Create().value());
};

TEST_P(RunnerTest, WakesForEveryMessageOverManyRounds) {
  Counter counter(*sleeper_);
  ActorSet actors({&counter}, *sleeper_);
  const Runner runner("test", actors, *sleeper_, spin());
  for (int round = 1; round <= 1000; ++round) {
    ASSERT_TRUE(counter.inbox().Send(1));
    ASSERT_TRUE(counter.WaitForSum(round)) << "round " << round;
  }
}

TEST_P(RunnerTest, ServesManySendersAtOnce) {
  Counter counter(*sleeper_);
  ActorSet actors({&counter}, *sleeper_);
  const Runner runner("test", actors, *sleeper_, spin());
  {
    std::vector<std::jthread> senders;
    for (int sender = 0; sender < 3; ++sender) {
      senders.emplace_back([&counter] {
        for (int i = 0; i < 1000; ++i) {
          EXPECT_TRUE(counter.inbox().Send(1));
          if (i % 16 == 0) std::this_thread::yield();
        }
      });
    }
  }
  EXPECT_TRUE(counter.WaitForSum(3000));
}

TEST_P(RunnerTest, CallsAnActorAtItsDeadlineWithoutAnyWake) {
  Counter counter(*sleeper_);
  counter.deadline.store(MonotonicNow() + 5 * kMillisecond);
  ActorSet actors({&counter}, *sleeper_);
  const Runner runner("test", actors, *sleeper_, spin());
  EXPECT_TRUE(counter.WaitForDeadline());
}

TEST_P(RunnerTest, DrivesSeveralActorsThatSpeakToEachOtherOnOneThread) {
  Counter first(*sleeper_);
  Counter second(*sleeper_);
  ActorSet actors({&first, &second}, *sleeper_);
  const Runner runner("test", actors, *sleeper_, spin());
  for (int round = 1; round <= 500; ++round) {
    ASSERT_TRUE((round % 2 == 0 ? first : second).inbox().Send(1));
    ASSERT_TRUE((round % 2 == 0 ? first : second).WaitForSum((round + 1) / 2));
  }
}

TEST_P(RunnerTest, StopsWhileItSleeps) {
  for (int round = 0; round < 200; ++round) {
    Counter counter(*sleeper_);
    ActorSet actors({&counter}, *sleeper_);
    const Runner runner("a name that is longer than a thread's may be", actors, *sleeper_, spin());
    if (round % 2 == 0) std::this_thread::yield();
  }
}

TEST_P(RunnerTest, MakesNoTurnsWhileThereIsNothingToDo) {
  Counter counter(*sleeper_);
  ActorSet actors({&counter}, *sleeper_);
  const Runner runner("test", actors, *sleeper_, spin());
  ASSERT_TRUE(counter.inbox().Send(1));
  ASSERT_TRUE(counter.WaitForSum(1));
  // It falls asleep in its own time, and then makes no turn at all for a while.
  const std::unique_ptr<Sleeper> pause = std::move(Sleeper::Create().value());
  int turns = -1;
  for (int tries = 0; tries < 100 && turns != counter.turns.load(); ++tries) {
    turns = counter.turns.load();
    pause->Sleep(50 * kMillisecond);
  }
  EXPECT_EQ(counter.turns.load(), turns);
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutSpin, RunnerTest,
                         ::testing::Values(TimeNs{0}, 50 * kMicrosecond), [](const auto& test) {
                           return test.param == 0 ? "SleepsAtOnce" : "SpinsFirst";
                         });

}  // namespace
}  // namespace headrace::service
