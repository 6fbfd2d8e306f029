// The threads that help the lane's thread with large transfers. Asleep, without any wakeup, while
// there is nothing to do.
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

class Crew {
 public:
  // Starts `helpers_count` threads, which block all signals.
  Crew(std::uint32_t helpers_count, Waker& waker);
  // Ends the work at the next piece border and joins the threads.
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // The rest is for the lane's thread. Wakes the helpers to take pieces of `work`, which must stay
  // until Withdraw returned true.
  void Offer(Piecework& work);

  // Lets no further helper start on the offered work. True when none is working on it any more;
  // what they wrote is then visible to the caller. After false, the last helper to leave wakes the
  // Waker, and Withdraw is to be called again.
  bool Withdraw();

 private:
  void RunHelper();

  Waker& waker_;
  std::mutex mutex_;
  std::condition_variable offered_;
  Piecework* work_ = nullptr;  // guarded by mutex_, as are the next three
  std::uint64_t offer_ = 0;    // number of the latest offer
  bool lane_waits_ = false;    // Withdraw returned false since the latest offer
  bool stopping_ = false;
  // Helpers inside the work. Written under mutex_; read without it only to poll.
  std::atomic<std::uint32_t> inside_{0};
  std::vector<std::thread> helpers_;
};

}  // namespace headrace::transport
