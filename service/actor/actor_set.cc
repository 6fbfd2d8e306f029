#include "service/actor/actor_set.h"

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::service {

ActorSet::ActorSet(std::vector<Actor*> actors, Sleeper& sleeper)
    : actors_(std::move(actors)), sleeper_(sleeper) {
  HR_CHECK(!actors_.empty());
  HR_CHECK(std::ranges::find(actors_, nullptr) == actors_.end(), actors_.size());
}

void ActorSet::AddReceiver(LateWake& wake, ActorSet& receiver) {
  HR_CHECK(&receiver != this, receivers_.size());
  wake.Defer();
  receivers_.push_back({&wake, &receiver});
}

bool ActorSet::Work() {
  const TimeNs now = MonotonicNow();
  bool worked = false;
  for (Actor* actor : actors_) {
    worked |= actor->DoWork(now);
    WakeReceivers(now);
  }
  if (!worked) idle_ns_ = now;
  return worked;
}

// Where several have messages, all but one start at once on their own threads.
void ActorSet::WakeReceivers(TimeNs now) {
  ActorSet* first = nullptr;
  for (const Receiver& receiver : receivers_) {
    if (!receiver.wake->Consume()) continue;
    if (first == nullptr) {
      first = receiver.set;
    } else {
      receiver.set->sleeper_.Wake();
    }
  }
  if (first == nullptr) return;
  if (now - idle_ns_ <= kIdleWithin && first->TryRunFirst()) return;
  first->sleeper_.Wake();
}

bool ActorSet::TryRunFirst() {
  const std::unique_lock lock(turn_, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  EndSleep();
  const TimeNs start = MonotonicNow();
  TimeNs now = start;
  bool worked = true;
  while (worked && !IsWanted() && now - start <= kReceiverFor) {
    worked = actors_.front()->DoShortWork(now);
    now = MonotonicNow();
  }
  // The set that runs this one is awake already; others are not run from here.
  for (const Receiver& receiver : receivers_) {
    if (receiver.wake->Consume()) receiver.set->sleeper_.Wake();
  }
  TimeNs deadline = kNever;
  const bool idle = PrepareToSleep(deadline);
  if (worked || !idle || deadline < sleeps_until_ns_) sleeper_.Wake();
  return true;
}

void ActorSet::Sleep(std::unique_lock<std::mutex>& lock, const std::stop_token& stop) {
  // A stop that comes later interrupts the sleeper, even while another thread works for this one.
  if (PrepareToSleep(sleeps_until_ns_) && !stop.stop_requested()) {
    const TimeNs until = sleeps_until_ns_;
    lock.unlock();
    sleeper_.Sleep(until == kNever ? kNever : until - MonotonicNow());
    is_wanted_.store(true);
    lock.lock();
    is_wanted_.store(false);
  }
  EndSleep();
  idle_ns_ = MonotonicNow();
}

bool ActorSet::PrepareToSleep(TimeNs& deadline) {
  sleeper_.Announce();
  bool idle = true;
  deadline = kNever;
  for (Actor* actor : actors_) {
    idle &= actor->PrepareToSleep();
    deadline = std::min(deadline, actor->NextDeadline());
  }
  return idle;
}

void ActorSet::EndSleep() {
  sleeper_.Retract();
  for (Actor* actor : actors_) actor->Awake();
}

}  // namespace headrace::service
