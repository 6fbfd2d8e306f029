// Frees the state of an ended session, a part in each turn of the event loop, so that a million
// tensors delay no other client. The rpc thread only.
#pragma once

#include <kj/async.h>
#include <kj/timer.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "ipc/base/check.h"
#include "service/session/session.h"

namespace headrace::service {

// Outlives the event loop, with which the last sessions may go.
class SlowRelease {
 public:
  // Tensors that are read, checked, handed on or freed before others have their turn: about a
  // millisecond.
  static constexpr std::size_t kTensorsPerTurn = 2048;

  // The loop's timer, for as long as there is one: nobody waits after that.
  void SetTimer(kj::Timer* timer) {
    HR_CHECK((timer == nullptr) != (timer_ == nullptr));
    timer_ = timer;
  }

  void Release(std::vector<Tensor> tensors) {
    if (timer_ != nullptr) InTurns(std::move(tensors), *timer_).detach([](kj::Exception&&) {});
  }

 private:
  static kj::Promise<void> InTurns(std::vector<Tensor> tensors, kj::Timer& timer) {
    tensors.resize(tensors.size() - std::min(tensors.size(), kTensorsPerTurn));
    if (tensors.empty()) return kj::READY_NOW;
    return timer.afterDelay(0 * kj::NANOSECONDS)
        .then([&timer, left = std::move(tensors)]() mutable {
          return InTurns(std::move(left), timer);
        });
  }

  kj::Timer* timer_ = nullptr;
};

}  // namespace headrace::service
