// The GPUs of a session: the CUDA driver, opened for the first segment on a GPU, and for each GPU
// its context and the channel's words.
//
// Thread-safe. A session without GPU segments never opens the driver. Only GPUs that have segments
// get a context, because a context costs GPU memory.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "client/lib/gpu_words.h"
#include "ipc/base/clock.h"
#include "ipc/base/result.h"
#include "ipc/channel.h"
#include "transport/memory/cuda_driver.h"
#include "transport/memory/cuda_handles.h"
#include "transport/memory/device_grant.h"

namespace headrace::client {

// How long a session that is closed or comes back waits for its streams: once for what they do with
// the other ranks, and, closed, once more when nothing of the session holds them up any more.
inline constexpr TimeNs kStreamsPassMax = 10 * kSecond;

class SessionGpus {
 public:
  // `channel` outlives this. `library` is opened by the first call of Driver.
  explicit SessionGpus(ipc::ChannelLayout& channel,
                       std::string library = std::string(transport::kCudaLibrary))
      : channel_(&channel), library_(std::move(library)) {}
  // Before the driver is opened.
  void UseLibrary(std::string library) { library_ = std::move(library); }

  // Errors: those of CudaDriver::Open. Shared with memory that outlives the session.
  Result<std::shared_ptr<const transport::CudaDriver>> Driver();

  // A GPU of this process by its ordinal. kInvalidArgument names how many there are.
  Status CheckDevice(int device);

  // What another process needs to map `size` bytes at `address`. On any thread, which need not have
  // used CUDA before.
  Result<transport::DeviceGrant> Grant(transport::CuAddress address, std::uint64_t size);

  Result<transport::DeviceAllocation> AllocationAt(transport::CuAddress address);

  // The words for streams of one GPU on which the session has memory; pinned by the first call, for
  // which the stream that is about to use them may not be in a capture.
  Result<GpuWords*> WordsOf(int device, transport::CuStream stream);
  // For the streams of the calling thread's current GPU, if the session has words there; else of
  // the first GPU on which the session had memory.
  Result<GpuWords*> WordsForWaits(transport::CuStream stream);
  // The session has memory on it, by an open driver.
  Status NoteMemoryOn(int device);

  // Whether streams may stand before words; false where none were ever pinned.
  bool HasWords();
  // Waits until all streams have passed, at most `timeout_ns`; at once where there are none.
  void AwaitStreams(TimeNs timeout_ns);
  // Likewise, and the words are gone afterwards. Words that are still awaited then
  // are left pinned and mapped. All operations must have ended.
  void LetStreamsPass(TimeNs timeout_ns);
  // Words are those of another channel from here on; after LetStreamsPass.
  void Renew(ipc::ChannelLayout& channel);

 private:
  struct Gpu {
    transport::PrimaryContext context;
    std::unique_ptr<GpuWords> words;  // refers to the context
  };
  void AwaitLocked(GpuWords& words, TimeNs deadline);
  Result<transport::PrimaryContext*> ContextLocked(int device);
  Result<GpuWords*> WordsLocked(int device, transport::CuStream stream);
  Result<std::shared_ptr<const transport::CudaDriver>> DriverLocked();

  ipc::ChannelLayout* channel_;  // never null
  std::mutex mutex_;
  std::string library_;
  std::shared_ptr<const transport::CudaDriver> driver_;  // guarded by mutex_, as is all below
  int first_ = -1;                                       // GPU with memory of the session
  std::map<int, Gpu> gpus_;
};

}  // namespace headrace::client
