#include "transport/shm/worker_pool.h"

#include <pthread.h>

#include <csignal>

#include "ipc/base/check.h"
#include "ipc/base/clock.h"

namespace headrace::transport {
namespace {

// How long Withdraw polls before it leaves the end to the Waker: about the smallest piece, which is
// what a helper has left at that moment, and less than sleeping and waking would take.
constexpr TimeNs kPollNs = 15 * kMicrosecond;
// How long a helper looks for the offer that follows: a turn of the lane's thread and of dispatch.
constexpr TimeNs kFollowNs = 20 * kMicrosecond;
// Looks between two looks at the clock.
constexpr int kPollsPerClock = 32;

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Returns when `done()`, or after about `time_ns`.
template <typename Done>
void PollUntil(const Done& done, TimeNs time_ns) {
  const TimeNs end = MonotonicNow() + time_ns;
  do {
    for (int i = 0; i < kPollsPerClock; ++i) {
      if (done()) return;
      Pause();
    }
  } while (MonotonicNow() < end);
}

}  // namespace

WorkerPool::WorkerPool(std::uint32_t helpers_count, Waker& waker) : waker_(waker) {
  if (helpers_count == 0) return;
  // Threads inherit the mask of their maker. Signals belong to the process' own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  helpers_.reserve(helpers_count);
  for (std::uint32_t i = 0; i < helpers_count; ++i) {
    helpers_.emplace_back([this] { RunHelper(); });
    pthread_setname_np(helpers_.back().native_handle(), "hr-shm-pool");
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (work_ != nullptr) work_->Stop();
  }
  offered_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void WorkerPool::Offer(Piecework& work, bool more_follows) {
  {
    const std::lock_guard lock(mutex_);
    // The one before was withdrawn, and nobody works on it.
    HR_CHECK(work_ == nullptr && inside_.load(std::memory_order_relaxed) == 0, offer_.load());
    work_ = &work;
    offer_.fetch_add(1, std::memory_order_relaxed);
    more_follows_ = more_follows;
    lane_waits_ = false;
  }
  offered_.notify_all();
}

bool WorkerPool::Withdraw() {
  PollUntil([&] { return inside_.load(std::memory_order_relaxed) == 0; }, kPollNs);
  const std::lock_guard lock(mutex_);
  work_ = nullptr;
  lane_waits_ = inside_.load(std::memory_order_relaxed) != 0;
  return !lane_waits_;
}

void WorkerPool::RunHelper() {
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    offered_.wait(lock, [&] {
      return stopping_ || (work_ != nullptr && offer_.load(std::memory_order_relaxed) != seen);
    });
    if (stopping_) return;
    seen = offer_.load(std::memory_order_relaxed);
    Piecework& work = *work_;
    inside_.fetch_add(1, std::memory_order_relaxed);
    lock.unlock();
    while (work.DoPiece()) {
    }
    lock.lock();
    const bool last = inside_.fetch_sub(1, std::memory_order_relaxed) == 1;
    if (last && lane_waits_) {
      lane_waits_ = false;
      lock.unlock();
      waker_.Wake();
      lock.lock();
    }
    if (more_follows_ && !stopping_) {
      lock.unlock();
      AwaitOffer(seen);
      lock.lock();
    }
  }
}

void WorkerPool::AwaitOffer(std::uint64_t seen) const {
  PollUntil([&] { return offer_.load(std::memory_order_relaxed) != seen; }, kFollowNs);
}

}  // namespace headrace::transport
