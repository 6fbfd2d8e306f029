// The threads that help the lane's thread with large transfers. They sleep, without any wakeup,
// while there is nothing to do. Between two transfers that follow each other they poll for a
// moment, because falling asleep and waking up takes as long as a large part of a block.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "transport/shm/piecework.h"
#include "transport/transport.h"

namespace headrace::transport {

class WorkerPool {
 public:
  // Starts `helpers_count` threads, which block all signals.
  WorkerPool(std::uint32_t helpers_count, Waker& waker);
  // Ends the work at the next piece border and joins the threads.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // The rest is for the lane's thread. Wakes the helpers to take pieces of `work`, which must stay
  // until Withdraw returned true. `more_follows`: another offer comes at once after this one.
  void Offer(Piecework& work, bool more_follows);

  // Lets no further helper start on the offered work. True when none is working on it any more;
  // what they wrote is then visible to the caller. After false, the last helper to leave wakes the
  // Waker, and Withdraw is to be called again.
  bool Withdraw();

 private:
  void RunHelper();
  // Returns when there is an offer that was not `seen`, or after a moment.
  void AwaitOffer(std::uint64_t seen) const;

  Waker& waker_;
  std::mutex mutex_;
  std::condition_variable offered_;
  Piecework* work_ = nullptr;  // guarded by mutex_, as are the next three
  bool more_follows_ = false;
  bool lane_waits_ = false;  // Withdraw returned false since the latest offer
  bool stopping_ = false;
  // Number of the latest offer. Written under mutex_; read without it only to poll.
  std::atomic<std::uint64_t> offer_{0};
  // Helpers inside the work. Written under mutex_; read without it only to poll.
  std::atomic<std::uint32_t> inside_{0};
  std::vector<std::thread> helpers_;
};

}  // namespace headrace::transport
