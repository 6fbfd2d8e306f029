// The actors that share a thread, and the lock under which they work.
//
// A message to an actor whose thread sleeps costs the time that the kernel takes to wake that
// thread. So a set that has just been idle, and whose turn has sent such a message, runs the
// receiver on its own thread: for kReceiverFor and a turn, and only if the receiver's thread
// sleeps. Where that leaves something to do, or under load, the receiver's thread is woken as ever.
// A thread never waits for the lock of another set, and leaves it to that set's own thread as soon
// as that wants it: a stream of messages would keep it from the other actors. What takes long is
// left to the receiver's own (Actor::DoShortWork), so nothing that one actor does holds up the
// thread of another for longer than a short turn.
//
// An actor is still run by one thread at a time; the lock orders what the threads do.
#pragma once

#include <atomic>
#include <mutex>
#include <stop_token>
#include <vector>

#include "service/actor/actor.h"
#include "service/actor/late_wake.h"
#include "service/actor/sleeper.h"

namespace headrace::service {

class ActorSet {
 public:
  // A set that has worked for longer has other things to do, and wakes its receivers.
  static constexpr TimeNs kIdleWithin = 200 * kMicrosecond;
  // How long turns of a receiver may begin. The last one finds nothing to do if it may stay asleep.
  static constexpr TimeNs kReceiverFor = 100 * kMicrosecond;

  // Actors and sleeper outlive the set.
  ActorSet(std::vector<Actor*> actors, Sleeper& sleeper);
  ActorSet(const ActorSet&) = delete;
  ActorSet& operator=(const ActorSet&) = delete;

  // Before any thread works: what actors of this set send by `wake` is for the first actor of
  // `receiver`, which outlives the threads of both sets.
  void AddReceiver(LateWake& wake, ActorSet& receiver);

  // Whether the set's own thread is awake and waits for the lock. Any thread.
  bool IsWanted() const { return is_wanted_.load(); }

  // The rest belongs to the set's own thread, which holds the lock except while it sleeps.
  [[nodiscard]] std::unique_lock<std::mutex> Lock() { return std::unique_lock(turn_); }
  // A turn of each actor. Returns whether any did something.
  bool Work();
  // Sleeps until woken or due, unless work has come or a stop is requested; whoever requests one
  // interrupts the sleeper after it. Holds the lock again at the end.
  void Sleep(std::unique_lock<std::mutex>& lock, const std::stop_token& stop);

 private:
  struct Receiver {
    LateWake* wake = nullptr;
    ActorSet* set = nullptr;
  };

  void WakeReceivers(TimeNs now);
  // On the thread of another set. Returns false if this set's own thread is awake. At most one turn
  // begins after that thread has begun to wait.
  bool TryRunFirst();
  // Returns whether the thread may sleep, and sets until when.
  bool PrepareToSleep(TimeNs& deadline);
  void EndSleep();

  std::vector<Actor*> actors_;
  Sleeper& sleeper_;
  std::vector<Receiver> receivers_;
  std::atomic<bool> is_wanted_ = false;
  std::mutex turn_;                  // guards what follows, and the actors
  TimeNs idle_ns_ = 0;               // when the own thread last found nothing to do
  TimeNs sleeps_until_ns_ = kNever;  // at the latest, while it sleeps
};

}  // namespace headrace::service
