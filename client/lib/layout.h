// A session's gradients in forward order, posted once an iteration for the job's plan to move.
//
// Thread-safe. Its lock is never held while a post or a wait sleeps.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "client/include/headrace/headrace.h"
#include "client/lib/control.h"
#include "client/lib/gpu_words.h"
#include "client/lib/layout_times.h"
#include "client/lib/operations.h"
#include "ipc/base/collective.h"
#include "ipc/base/result.h"
#include "ipc/records.h"

namespace headrace::client {

class Session;

// What the specs of a layout must be, beyond what each must be as a tensor: one segment, no
// overlap, a reduction and policy that can be. The error names the gradients.
Status CheckLayout(std::span<const hr_tensor_spec> specs, const hr_layout_options& options);
// What options that check ask for a layout of so many gradients; the tensors' number is missing.
LayoutNotice NoticeOf(const hr_layout_options& options, std::size_t gradients_count);

class Layout {
 public:
  struct Gradient {
    std::string name;
    std::uint64_t count = 0;  // elements
    DType dtype = DType::kFloat32;
  };
  // As the service knows it: the gradients are tensors first_tensor, first_tensor + 1, ...
  struct Shape {
    std::uint32_t first_tensor = 0;
    Reduction reduction = Reduction::kAverage;
    int device = -1;  // that all of it lies on; -1: the host
    std::vector<Gradient> gradients = {};
  };

  // `operations` outlives this.
  Layout(Operations& operations, Shape shape);

  // kInvalidArgument while some but not all gradients of the last backward pass were posted.
  Status BeginBackward();
  // Returns the operation's number. kBusy when the gradient is open or was posted in this pass.
  // With a `signal`, which is ready when that says so.
  Result<std::uint64_t> Post(std::uint32_t index, ReadySignal* signal = nullptr);
  // A barrier that ends when every rank has the averages of all that was posted before it. Returns
  // the operation's number. kInvalidArgument as for BeginBackward.
  Result<std::uint64_t> PostBarrier();
  Status Wait(std::uint32_t index, TimeNs timeout_ns);
  // Has a stream wait in the caller's place; a failure of what has ended is returned.
  Status WaitOnStream(std::uint32_t index, GpuWords& words, transport::CuStream stream);
  void EndForward();
  // By how many ranks averages are divided from the next backward pass on; 0: by all. A sum has 0.
  Status SetContributors(std::uint32_t count);
  // The service knows the gradients by other numbers, and of no iteration of theirs. While nobody
  // is in any call here.
  void Renew(std::uint32_t first_tensor);
  int device() const { return shape_.device; }

 private:
  struct State {
    std::uint64_t operation = 0;  // its last; 0: none yet
    std::uint64_t iteration = 0;  // in which that was posted
    bool posting = false;         // a thread is at it
    bool awaited = false;         // by a stream, since its last post
  };

  Status CheckIndex(std::uint32_t index) const;
  Status CheckWholeLocked() const;
  Status ClaimLocked(std::uint32_t index, bool on_stream);
  ipc::GradientRecord RecordLocked(std::uint32_t index) const;
  Status OutcomeOf(std::uint32_t index, std::uint64_t operation) const;
  std::string Named(std::size_t index) const;

  Operations& operations_;
  Shape shape_;
  std::mutex mutex_;
  LayoutTimes times_;          // guarded by mutex_, as is all below
  std::vector<State> states_;  // of each gradient
  std::uint64_t iteration_ = 0;
  std::size_t posted_ = 0;  // gradients of this iteration
  std::uint32_t contributors_ = 0;
};

}  // namespace headrace::client

// Owned by the session.
struct hr_layout {
  headrace::client::Session& session;
  headrace::client::Layout layout;
};
