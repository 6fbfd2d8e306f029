// The requests of a session to the service outside of the data path. Each call is one round trip.
//
// Three implementations: Connection (the real one), DisconnectedControl (after it was lost for
// good) and the fake of tests/unit/client.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/collective.h"
#include "ipc/base/device_handle.h"
#include "ipc/base/fd.h"
#include "ipc/base/result.h"

namespace headrace::client {

// A tensor as the service is sent it.
struct TensorSpec {
  std::string name;
  std::uint32_t segment = 0;
  std::uint64_t offset = 0;  // bytes from the start of the segment
  std::uint64_t count = 0;   // elements
  DType dtype = DType::kFloat32;
  std::uint32_t order = 0;
};

// A layout as the service is sent it.
struct LayoutNotice {
  std::uint32_t first = 0;  // tensor
  std::uint32_t count = 0;
  Reduction reduction = Reduction::kAverage;
  std::string policy;                 // empty: as the leader of the job has it
  std::string codec;                  // empty: none
  std::vector<std::string> codecs{};  // of each tensor, or none; empty ones: as codec says
  std::uint64_t compress_after = 0;
  std::uint64_t residuals = 0;                       // where in residuals_segment
  std::optional<std::uint32_t> residuals_segment{};  // none: the gradients', where 0 is nowhere
  std::uint32_t factors_rank = 0;                    // of the right factors behind the residuals
  std::uint64_t iterations_before = 0;               // of earlier epochs
  bool adaptive = false;                             // the optimizer is, as Adam
  std::vector<std::uint64_t> rows{};  // of each tensor, 0 where it is no matrix; or none
};

// Thread-safe. Every call returns within the call timeout, or, when memory is registered and the
// service says that it lives, within what that much memory may take; a call that the service does
// not answer loses the service. After it was lost every call returns at once, with the same error.
class Control {
 public:
  virtual ~Control() = default;

  // The service maps `size` bytes of the sealed memfd; returns the segment's number.
  virtual Result<std::uint32_t> RegisterSegment(int fd, std::size_t size) = 0;
  // Likewise with memory of a GPU, for all GPUs that reach it. The descriptors stay the caller's.
  virtual Result<std::uint32_t> RegisterDeviceSegment(const DeviceHandle& handle,
                                                      std::span<const UniqueFd> pieces) = 0;
  virtual Status ReleaseSegment(std::uint32_t segment) = 0;
  // All or none; the tensors get the numbers first, first + 1, ...
  virtual Result<std::uint32_t> RegisterTensors(std::span<const TensorSpec> tensors) = 0;
  virtual Status ReleaseTensors(std::uint32_t first, std::uint32_t count) = 0;
  // Makes the registered tensors first, first + 1, ... the session's layout.
  virtual Status SetLayout(const LayoutNotice& layout) = 0;
  // The orderly end; nothing may be asked afterwards.
  virtual Status Leave() = 0;
  // Whether the other end has not hung up, as far as the kernel knows: it knows before OnLost is
  // called.
  virtual bool IsThere() const = 0;
  // From here on each call may take so long, however long all of them take.
  virtual void BoundCalls(TimeNs timeout_ns) = 0;
  // In a forked child: closes the child's copy of the socket and touches nothing else.
  virtual void CloseInChild() = 0;
};

// Who wants to know that the service is gone, or stands still. Called from the connection's thread.
class LossListener {
 public:
  virtual ~LossListener() = default;
  // Once.
  virtual void OnLost(const Error& loss) = 0;
  // Others wait to join the job.
  virtual void OnMembersWait() = 0;
  // Where the services of the job's nodes are, for the next question who is left of it.
  virtual void OnPlaces(std::string places) = 0;
  // The number of the oldest operation that the service has not ended; 0: nothing is open.
  virtual std::uint64_t OldestOpen() = 0;
};

}  // namespace headrace::client
