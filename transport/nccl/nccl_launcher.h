// Makes one GPU's calls of NCCL, in the order in which they are posted: on a thread of its own, or
// on the thread that posts.
//
// Each GPU has a thread, because NCCL connects GPUs and launches kernels within its calls, which
// takes time that one thread would spend for one GPU after another. The owner posts each piece to
// all GPUs of it before the next, so that all have the same order; it waits for none of them and
// takes no lock: a post is a store, and a system call where the thread sleeps.
//
// Called on the owner's thread. NCCL may block the launch thread in a call: until the rank is
// aborted, or for good. So its end is waited for no longer than kEndWait; a thread that ends later
// notices that it was given up, and touches only objects that it shares ownership of.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "ipc/base/clock.h"
#include "transport/nccl/nccl_launch.h"

namespace headrace::transport {

class NcclLauncher {
 public:
  static constexpr std::size_t kLaunchesMax = 4;
  static constexpr TimeNs kEndWait = kSecond;

  // With a library, starts a thread, which keeps it; without, whoever posts makes the calls. A
  // launch never has more than `calls_max` of them.
  NcclLauncher(std::shared_ptr<const NcclLibrary> library, std::size_t calls_max);
  ~NcclLauncher();
  // Nothing that has not begun begins. The destructor counts its wait from here.
  void Stop();
  NcclLauncher(const NcclLauncher&) = delete;
  NcclLauncher& operator=(const NcclLauncher&) = delete;

  // The launch to fill in; its calls are empty. The one kLaunchesMax before it is done.
  NcclLaunch& Next();
  // Posts what Next gave; its number, counted from 0, and wraps.
  std::uint32_t Post();
  // Whether it has ended, well or not. Asks NCCL where there is no thread that does.
  bool IsDone(std::uint32_t number);
  // Whether it has ended, and its mark stands in the stream; until kLaunchesMax others were posted.
  bool IsMarked(std::uint32_t number);
  // How it ended; until kLaunchesMax others were posted.
  const Status& StatusOf(std::uint32_t number) const;

 private:
  struct State;  // what the thread shares with this

  bool has_thread_;
  TimeNs stopped_ns_ = kNever;
  std::shared_ptr<State> state_;  // owners: this, and the thread
};

}  // namespace headrace::transport
