// Times of one rank's iterations: for each gradient the computing time of its part of the forward
// pass, and the time that the forward pass waited for it. Pure: time is an argument.
//
// An iteration is a forward pass, then a backward pass in which every gradient is posted. The part
// of a gradient begins when the wait for it ends, and ends with the next wait or the forward pass.
// Only the first forward pass after a backward pass counts, because gradients can be late for no
// other; evaluation and further micro-batches follow it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ipc/base/clock.h"

namespace headrace::client {

// Not thread-safe; Layout holds its lock.
class LayoutTimes {
 public:
  // The times of one gradient in one iteration, in its record: at most ipc::kGradientTimeMax.
  struct Part {
    std::uint64_t forward_ns = 0;
    std::uint64_t waited_ns = 0;
  };

  explicit LayoutTimes(std::size_t count) : parts_(count) {}

  // The forward pass asks for another gradient: the part of the one before is over.
  void Pause(TimeNs now);
  // The wait for gradient `index` has ended with its values there; it stood still for `waited_ns`.
  void Reach(std::size_t index, TimeNs now, TimeNs waited_ns);
  // A wait that ended without the values: time was lost, no part begins.
  void LoseTime(std::size_t index, TimeNs waited_ns);
  void EndForward(TimeNs now);

  // The next iteration's backward pass: what is reached from now on is its forward pass.
  void BeginBackward(TimeNs now);

  // What is known of gradient `index` since its last post; Forget is that post.
  const Part& part(std::size_t index) const { return parts_[index]; }
  void Forget(std::size_t index) { parts_[index] = {}; }

  TimeNs backward_ns() const { return backward_ns_; }

 private:
  enum class Pass { kExpected, kRunning, kOver };

  std::vector<Part> parts_;
  std::optional<std::size_t> running_;  // the gradient whose part of the pass it is
  TimeNs since_ns_ = 0;                 // when that began
  Pass pass_ = Pass::kExpected;         // the one that counts
  TimeNs backward_ns_ = 0;
};

}  // namespace headrace::client
