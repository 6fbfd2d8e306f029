#include "service/actor/runner.h"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>

#include "ipc/base/check.h"

namespace headrace::service {
namespace {

// The kernel may be that late with a sleep's end. By default it is 50 us late, which is longer than
// the pace at which dispatch looks for what GPUs have written.
constexpr unsigned long kTimerSlackNs = 2000;

}  // namespace

Runner::Runner(std::string name, std::vector<Actor*> actors, Sleeper& sleeper, TimeNs spin_ns)
    : actors_(std::move(actors)), sleeper_(sleeper), spin_ns_(spin_ns) {
  HR_CHECK(!actors_.empty() && spin_ns_ >= 0, name, spin_ns_);
  HR_CHECK(std::ranges::find(actors_, nullptr) == actors_.end(), name, actors_.size());
  thread_ = std::jthread([this](const std::stop_token& stop) { Loop(stop); });
  pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
}

Runner::~Runner() {
  thread_.request_stop();
  sleeper_.Wake();
}

bool Runner::WorkOnce() {
  const TimeNs now = MonotonicNow();
  bool worked = false;
  for (Actor* actor : actors_) worked |= actor->DoWork(now);
  return worked;
}

void Runner::Loop(const std::stop_token& stop) {
  // Where that is refused sleeps end later, and nothing else changes.
  [[maybe_unused]] const int set = ::prctl(PR_SET_TIMERSLACK, kTimerSlackNs, 0, 0, 0);
  while (!stop.stop_requested()) {
    if (WorkOnce()) continue;
    const TimeNs spin_end = MonotonicNow() + spin_ns_;
    bool worked = false;
    while (!worked && spin_ns_ > 0 && MonotonicNow() < spin_end) {
      ::sched_yield();
      worked = WorkOnce();
    }
    if (!worked) SleepOnce(stop);
  }
}

void Runner::SleepOnce(const std::stop_token& stop) {
  sleeper_.Announce();
  bool idle = !stop.stop_requested();
  TimeNs deadline = kNever;
  for (Actor* actor : actors_) {
    idle &= actor->PrepareToSleep();
    deadline = std::min(deadline, actor->NextDeadline());
  }
  if (idle) sleeper_.Sleep(deadline == kNever ? kNever : deadline - MonotonicNow());
  sleeper_.Retract();
  for (Actor* actor : actors_) actor->Awake();
}

}  // namespace headrace::service
