#include "service/actor/runner.h"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#include "ipc/base/check.h"

namespace headrace::service {
namespace {

// The kernel may be that late with a sleep's end. By default it is 50 us late, which is longer than
// the pace at which dispatch looks for what GPUs have written.
constexpr unsigned long kTimerSlackNs = 2000;

}  // namespace

Runner::Runner(const std::string& name, ActorSet& actors, Sleeper& sleeper, TimeNs spin_ns)
    : actors_(actors), sleeper_(sleeper), spin_ns_(spin_ns) {
  HR_CHECK(spin_ns_ >= 0, name, spin_ns_);
  thread_ = std::jthread([this](const std::stop_token& stop) { Loop(stop); });
  pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
}

Runner::~Runner() {
  thread_.request_stop();
  sleeper_.Interrupt();
}

void Runner::Loop(const std::stop_token& stop) {
  // Where that is refused sleeps end later, and nothing else changes.
  [[maybe_unused]] const int set = ::prctl(PR_SET_TIMERSLACK, kTimerSlackNs, 0, 0, 0);
  std::unique_lock lock = actors_.Lock();
  while (!stop.stop_requested()) {
    if (actors_.Work()) continue;
    const TimeNs spin_end = MonotonicNow() + spin_ns_;
    bool worked = false;
    while (!worked && spin_ns_ > 0 && MonotonicNow() < spin_end) {
      ::sched_yield();
      worked = actors_.Work();
    }
    if (!worked) actors_.Sleep(lock, stop);
  }
}

}  // namespace headrace::service
