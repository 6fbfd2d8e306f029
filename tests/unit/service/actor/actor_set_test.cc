// A set runs the receiver of what it has sent where that one's thread sleeps, and wakes it
// otherwise.
#include "service/actor/actor_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <future>
#include <latch>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "service/actor/runner.h"

namespace headrace::service {
namespace {

// Long enough that a test which needs it is known to be broken, and not merely slow.
constexpr auto kBroken = std::chrono::seconds(20);

// A message that is not for short work.
constexpr TimeNs kTakesLong = -1;

// Where a turn stands still, and until when.
struct Stop {
  std::latch entered{1};
  std::latch left{1};
};

// Counts what it receives, one message a turn, and knows which thread ran it.
class Receiver final : public Actor {
 public:
  explicit Receiver(Wakeable& thread) : inbox_(thread) {}
  std::string_view name() const override { return "receiver"; }

  bool DoShortWork(TimeNs now) override {
    if (left_.empty()) inbox_.PopAll(left_);
    return (left_.empty() || left_.back() != kTakesLong) && DoWork(now);
  }
  bool DoWork(TimeNs now) override {
    if (left_.empty()) inbox_.PopAll(left_);
    const bool due = now >= deadline_;
    if (left_.empty() && !due) return false;
    const std::lock_guard lock(mutex_);
    last_thread_ = std::this_thread::get_id();
    ++(due ? expired_ : received_);
    deadline_ = kNever;
    if (!due) {
      if (left_.back() > 0) deadline_ = now + left_.back();
      left_.pop_back();
    }
    if (Stop* const stop = std::exchange(stop_, nullptr)) {
      stop->entered.count_down();
      stop->left.wait();
    }
    if (turn_lasts_ > 0) {
      while (MonotonicNow() < now + turn_lasts_) continue;
    }
    changed_.notify_all();
    return true;
  }
  bool PrepareToSleep() override { return inbox_.Empty() && left_.empty(); }
  void Awake() override {}
  TimeNs NextDeadline() const override { return deadline_; }

  // A message: after how long it sets a deadline; 0: never.
  Inbox<TimeNs>& inbox() { return inbox_; }
  bool WaitFor(int received, int expired = 0) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kBroken,
                             [&] { return received_ >= received && expired_ >= expired; });
  }
  int received() {
    const std::lock_guard lock(mutex_);
    return received_;
  }
  std::thread::id last_thread() {
    const std::lock_guard lock(mutex_);
    return last_thread_;
  }
  // Before the first message.
  void LetTurnsLast(TimeNs time) { turn_lasts_ = time; }
  void LetFirstTurnWaitFor(Stop& stop) { stop_ = &stop; }

 private:
  Inbox<TimeNs> inbox_;
  std::vector<TimeNs> left_;
  TimeNs deadline_ = kNever;
  TimeNs turn_lasts_ = 0;
  Stop* stop_ = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_;
  int received_ = 0;  // guarded by mutex_, as are the next
  int expired_ = 0;
  std::thread::id last_thread_;
};

// A receiver with its thread, and the way to it.
struct Running {
  Running()
      : sleeper(std::move(Sleeper::Create().value())),
        actor(*sleeper),
        wake(*sleeper),
        inbox(actor.inbox(), wake),
        set({&actor}, *sleeper) {}
  void Start() { runner = std::make_unique<Runner>("test", set, *sleeper, 0); }
  // The thread sleeps: it holds the lock otherwise.
  void WaitUntilAsleep() { (void)set.Lock(); }

  std::unique_ptr<Sleeper> sleeper;
  Receiver actor;
  LateWake wake;
  LateInbox<TimeNs> inbox;
  ActorSet set;
  std::unique_ptr<Runner> runner;
};

// Sends, when it is told to, by hand.
class Sender final : public Actor {
 public:
  std::string_view name() const override { return "sender"; }
  bool DoWork(TimeNs /*now*/) override {
    const bool works = !to_send.empty() || busy;
    for (auto& [inbox, message] : to_send) EXPECT_TRUE(inbox->Send(TimeNs{message}));
    to_send.clear();
    return works;
  }
  bool PrepareToSleep() override { return true; }
  void Awake() override {}
  TimeNs NextDeadline() const override { return kNever; }

  std::vector<std::pair<InboxWriter<TimeNs>*, TimeNs>> to_send;
  bool busy = false;
};

class ActorSets : public ::testing::Test {
 protected:
  ActorSets() {
    for (Running* each : {&first_, &second_}) set_.AddReceiver(each->wake, each->set);
  }
  void StartAll() {
    for (Running* each : {&first_, &second_}) {
      each->Start();
      each->WaitUntilAsleep();
    }
  }
  // As its thread does: a turn that finds nothing, then one that sends.
  void SendAfterIdling(std::vector<std::pair<InboxWriter<TimeNs>*, TimeNs>> messages) {
    EXPECT_FALSE(set_.Work());
    sender_.to_send = std::move(messages);
    EXPECT_TRUE(set_.Work());
  }

  const std::thread::id here_ = std::this_thread::get_id();
  std::unique_ptr<Sleeper> sleeper_ = std::move(Sleeper::Create().value());
  Sender sender_;
  ActorSet set_{{&sender_}, *sleeper_};
  Running first_;
  Running second_;
};

TEST_F(ActorSets, RunTheReceiverWhoseThreadSleeps) {
  StartAll();
  for (int round = 1; round <= 500; ++round) {
    first_.WaitUntilAsleep();
    SendAfterIdling({{&first_.inbox, 0}});
    ASSERT_TRUE(first_.actor.WaitFor(round));
  }
}

TEST_F(ActorSets, RunTheReceiverOnTheSendersThread) {
  // No thread of its own has started, which is as asleep as can be.
  SendAfterIdling({{&first_.inbox, 0}, {&first_.inbox, 0}});
  EXPECT_EQ(first_.actor.received(), 2);
  EXPECT_EQ(first_.actor.last_thread(), here_);
}

TEST_F(ActorSets, WakeTheReceiverWhenTheyHaveOtherThingsToDo) {
  StartAll();
  EXPECT_FALSE(set_.Work());
  sender_.busy = true;
  const TimeNs start = MonotonicNow();
  while (MonotonicNow() - start <= 2 * ActorSet::kIdleWithin) EXPECT_TRUE(set_.Work());
  sender_.to_send = {{&first_.inbox, 0}};
  EXPECT_TRUE(set_.Work());
  ASSERT_TRUE(first_.actor.WaitFor(1));
  EXPECT_NE(first_.actor.last_thread(), here_);
}

TEST_F(ActorSets, WakeTheReceiverForWhatIsLeft) {
  first_.actor.LetTurnsLast(ActorSet::kReceiverFor + kMicrosecond);
  StartAll();
  SendAfterIdling({{&first_.inbox, 0}, {&first_.inbox, 0}, {&first_.inbox, 0}});
  ASSERT_TRUE(first_.actor.WaitFor(3));
  EXPECT_NE(first_.actor.last_thread(), here_);
}

TEST_F(ActorSets, LeaveWhatTakesLongToTheReceiversThread) {
  StartAll();
  SendAfterIdling({{&first_.inbox, kTakesLong}});
  ASSERT_TRUE(first_.actor.WaitFor(1));
  EXPECT_NE(first_.actor.last_thread(), here_);
}

TEST_F(ActorSets, LeaveADeadlineToTheReceiversThread) {
  StartAll();
  SendAfterIdling({{&first_.inbox, 5 * kMillisecond}});
  ASSERT_TRUE(first_.actor.WaitFor(1, 1));
  EXPECT_NE(first_.actor.last_thread(), here_);
}

TEST_F(ActorSets, RunOneOfTwoReceiversAndWakeTheOther) {
  StartAll();
  SendAfterIdling({{&second_.inbox, 0}, {&first_.inbox, 0}});
  ASSERT_TRUE(first_.actor.WaitFor(1));
  ASSERT_TRUE(second_.actor.WaitFor(1));
  EXPECT_NE(second_.actor.last_thread(), here_);
}

TEST_F(ActorSets, StopAlthoughASenderRunsThem) {
  StartAll();
  ASSERT_TRUE(first_.actor.inbox().Send(0));
  ASSERT_TRUE(first_.actor.WaitFor(1));
  {
    // What a sender's thread does first: while it works for the one that sleeps, nobody wakes that.
    const std::unique_lock lock = first_.set.Lock();
    first_.sleeper->Retract();
  }
  std::future<void> stopped = std::async(std::launch::async, [this] { first_.runner.reset(); });
  EXPECT_EQ(stopped.wait_for(kBroken), std::future_status::ready);
  first_.sleeper->Announce();
  first_.sleeper->Wake();
}

TEST_F(ActorSets, DoNotWaitForAReceiverThatWorks) {
  Stop stop;
  first_.actor.LetFirstTurnWaitFor(stop);
  StartAll();
  ASSERT_TRUE(first_.actor.inbox().Send(0));
  stop.entered.wait();
  SendAfterIdling({{&first_.inbox, 0}});
  stop.left.count_down();
  ASSERT_TRUE(first_.actor.WaitFor(2));
}

// Counts turns that begin on others' threads although the own one waits.
class WaitedFor final : public Actor {
 public:
  explicit WaitedFor(Wakeable& thread) : inbox_(thread) {}
  std::string_view name() const override { return "waited for"; }
  bool DoWork(TimeNs now) override {
    if (std::this_thread::get_id() != sender || !set->IsWanted()) {
      in_a_row_ = 0;
    } else {
      most.store(std::max(most.load(), ++in_a_row_));
    }
    inbox_.PopAll(messages_);
    if (messages_.empty()) return false;
    while (MonotonicNow() < now + 10 * kMicrosecond) continue;
    return true;
  }
  bool PrepareToSleep() override { return inbox_.Empty(); }
  void Awake() override {}
  TimeNs NextDeadline() const override { return kNever; }

  Inbox<TimeNs>& inbox() { return inbox_; }
  // Before the first message.
  std::thread::id sender;
  const ActorSet* set = nullptr;
  std::atomic<int> most = 0;

 private:
  Inbox<TimeNs> inbox_;
  std::vector<TimeNs> messages_;
  int in_a_row_ = 0;
};

TEST_F(ActorSets, LeaveASetToItsOwnThreadThatWaits) {
  const std::unique_ptr<Sleeper> sleeper = std::move(Sleeper::Create().value());
  WaitedFor actor(*sleeper);
  ActorSet receiver({&actor}, *sleeper);
  actor.sender = here_;
  actor.set = &receiver;
  LateWake wake(*sleeper);
  LateInbox<TimeNs> inbox(actor.inbox(), wake);
  set_.AddReceiver(wake, receiver);
  const Runner runner("test", receiver, *sleeper, 0);
  for (int round = 0; round < 10'000; ++round) {
    SendAfterIdling({{&inbox, 0}});
    if (round % 4 == 0) sleeper->Interrupt();
  }
  EXPECT_LE(actor.most.load(), 1);
}

}  // namespace
}  // namespace headrace::service
