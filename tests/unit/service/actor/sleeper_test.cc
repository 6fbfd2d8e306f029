// Where a thread of actors sleeps, and everything that must wake it.
#include "service/actor/sleeper.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <thread>

namespace headrace::service {
namespace {

// Long enough that a test which needs it is known to be broken, and not merely slow.
constexpr TimeNs kFar = 20 * kSecond;

UniqueFd Bell() { return UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)); }

void Ring(const UniqueFd& bell) {
  const std::uint64_t one = 1;
  ASSERT_EQ(::write(bell.get(), &one, sizeof one), 8);
}

// Whether the sleep ended before its time.
bool Woken(Sleeper& sleeper, TimeNs timeout) {
  const TimeNs begin = MonotonicNow();
  sleeper.Sleep(timeout);
  return MonotonicNow() - begin < timeout / 2;
}

class SleeperTest : public ::testing::Test {
 protected:
  std::unique_ptr<Sleeper> sleeper_ = std::move(Sleeper::Create().value());
};

TEST_F(SleeperTest, SleepsItsTime) {
  sleeper_->Announce();
  const TimeNs begin = MonotonicNow();
  sleeper_->Sleep(5 * kMillisecond);
  EXPECT_GE(MonotonicNow() - begin, 5 * kMillisecond);
  sleeper_->Sleep(-kSecond);  // a deadline that has passed
  sleeper_->Retract();
}

TEST_F(SleeperTest, WakesAtOnceForAWakeThatCameAfterItsAnnouncement) {
  sleeper_->Announce();
  sleeper_->Wake();
  EXPECT_TRUE(Woken(*sleeper_, kFar));
  sleeper_->Retract();
}

TEST_F(SleeperTest, IsNotTroubledByAWakeWhileAwake) {
  sleeper_->Wake();
  sleeper_->Announce();
  EXPECT_FALSE(Woken(*sleeper_, 10 * kMillisecond));
  sleeper_->Retract();
}

TEST_F(SleeperTest, NeedsOneWakeForOneSleep) {
  sleeper_->Announce();
  for (int i = 0; i < 100; ++i) sleeper_->Wake();
  EXPECT_TRUE(Woken(*sleeper_, kFar));
  sleeper_->Retract();
  sleeper_->Announce();
  EXPECT_FALSE(Woken(*sleeper_, 10 * kMillisecond));
  sleeper_->Retract();
}

TEST_F(SleeperTest, HearsEachRingOfADoorbellWithoutReadingIt) {
  const UniqueFd bell = Bell();
  ASSERT_TRUE(sleeper_->Watch(bell.get()).ok());
  for (int i = 0; i < 3; ++i) {
    Ring(bell);
    EXPECT_TRUE(Woken(*sleeper_, kFar)) << "ring " << i;
    EXPECT_FALSE(Woken(*sleeper_, 10 * kMillisecond)) << "the ring is used up";
  }
}

TEST_F(SleeperTest, HearsMoreDoorbellsAtOnceThanItAsksForAtATime) {
  std::vector<UniqueFd> bells;
  for (int i = 0; i < 50; ++i) {
    bells.push_back(Bell());
    ASSERT_TRUE(sleeper_->Watch(bells.back().get()).ok());
    Ring(bells.back());
  }
  EXPECT_TRUE(Woken(*sleeper_, kFar));
}

TEST_F(SleeperTest, IsDeafToADoorbellItUnwatched) {
  const UniqueFd bell = Bell();
  ASSERT_TRUE(sleeper_->Watch(bell.get()).ok());
  sleeper_->Unwatch(bell.get());
  Ring(bell);
  EXPECT_FALSE(Woken(*sleeper_, 10 * kMillisecond));
}

TEST_F(SleeperTest, SaysWhyItCannotListenToSomething) {
  EXPECT_EQ(sleeper_->Watch(-1).ok(), false);
  EXPECT_NE(sleeper_->Watch(-1).error().text().find("epoll_ctl add"), std::string::npos);
}

TEST_F(SleeperTest, IsNotKeptAwakeByADoorbellThatWasWrittenFull) {
  const UniqueFd bell = Bell();
  ASSERT_TRUE(sleeper_->Watch(bell.get()).ok());
  const std::uint64_t full = UINT64_MAX - 1;
  ASSERT_EQ(::write(bell.get(), &full, sizeof full), 8);
  EXPECT_TRUE(Woken(*sleeper_, kFar));
  EXPECT_FALSE(Woken(*sleeper_, 10 * kMillisecond));
}

// One thread sleeps whenever it finds nothing, the other gives it something: none may be missed.
TEST_F(SleeperTest, LosesNoWakeOverManyRounds) {
  constexpr int kRounds = 5000;
  std::atomic<int> given = 0;
  std::atomic<int> taken = 0;
  int lost = 0;
  std::jthread sender([&] {
    for (int round = 1; round <= kRounds; ++round) {
      given.store(round);
      sleeper_->Wake();
      // Sometimes waits for the sleeper, so that both fall asleep and stay awake.
      if (round % 3 == 0) {
        while (taken.load() < round) std::this_thread::yield();
      }
    }
  });
  while (taken.load() < kRounds) {
    sleeper_->Announce();
    const TimeNs begin = MonotonicNow();
    if (given.load() == taken.load()) sleeper_->Sleep(kFar);
    sleeper_->Retract();
    if (MonotonicNow() - begin > kFar / 2) ++lost;
    taken.store(given.load());
  }
  EXPECT_EQ(lost, 0);
}

}  // namespace
}  // namespace headrace::service
