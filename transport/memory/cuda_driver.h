// CUDA's driver, opened at run time: one program runs with and without a GPU.
//
// Thread-safe after Open. A process must not fork and use an inherited driver in the child; the
// driver refuses that.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "ipc/base/result.h"
#include "transport/memory/cuda_abi.h"
#include "transport/memory/library.h"

namespace headrace::transport {

inline constexpr std::string_view kCudaLibrary = "libcuda.so.1";
// CUDA 12.0, driver 525: the first whose word operations, VMM and UUIDs are all the ones we use.
inline constexpr int kCudaVersionMin = 12000;

class CudaDriver {
 public:
  // Loads `library`, resolves every function, initialises, and counts GPUs. Errors: kNotFound
  // without the library, kVersionMismatch for a driver that is too old (or a toolkit's stub),
  // kUnavailable without a GPU; each says what to do.
  static Result<std::unique_ptr<CudaDriver>> Open(const std::string& library);

  // Null where the driver lacks them.
  const CudaMulticast* multicast() const { return multicast_ ? &*multicast_ : nullptr; }
  const CudaFunctions& call() const { return functions_; }
  int version() const { return version_; }  // 12040 = 12.4
  int devices_count() const { return devices_count_; }

  // "doing: CUDA_ERROR_OUT_OF_MEMORY (out of memory)", with what the caller may do as its code.
  Error Failed(CuResult result, std::string_view doing) const;
  // Ok or Failed. `doing` is not copied unless the call failed.
  Status Check(CuResult result, std::string_view doing) const;

  // Handles report here what their release said. A driver whose context died under it refuses to
  // release; nothing can be done about that, but it must not go unseen.
  void NoteRelease(CuResult result) const;
  std::uint64_t releases_failed() const { return releases_failed_; }

  // Called with the first answer after which a context is of no use any more (BreaksContext), with
  // what was being done and what CUDA calls it; called again for later ones until it returns true.
  // Called from whatever thread met it, which may hold locks, so it only passes it on. Before other
  // threads use the driver.
  using OnBrokenContext = std::function<bool(const std::string& cause)>;
  void OnBroken(OnBrokenContext report) { on_broken_ = std::move(report); }

 private:
  explicit CudaDriver(OpenedLibrary library) : library_(std::move(library)) {}
  Status Resolve();
  Status CheckVersion();
  Status Start();
  void NoteBroken(CuResult result, const std::string& cause) const;

  OpenedLibrary library_;
  CudaFunctions functions_;
  std::optional<CudaMulticast> multicast_;
  int version_ = 0;
  int devices_count_ = 0;
  mutable std::atomic<std::uint64_t> releases_failed_ = 0;
  OnBrokenContext on_broken_;
  mutable std::atomic<bool> broken_reported_ = false;
};

// Errors that stay: the context of whoever gets one answers everything with it from then on, and so
// do contexts that the process makes anew ("the process must be terminated and relaunched", CUDA
// Driver API, Data types used by CUDA driver, CUresult). They often belong to work that was
// launched long before the call that gets them.
bool BreaksContext(CuResult result);

// What the caller may do about it.
Code CodeOf(CuResult result);
// "12.4"
std::string CudaVersionText(int version);

}  // namespace headrace::transport
