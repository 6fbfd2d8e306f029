// Words in memory that host, GPUs and other processes share, written and awaited in stream order.
// By them a trainer signals that a gradient is ready and learns that its sum is, without its host
// waiting.
//
// A word is 8 bytes and only grows. `AwaitAtLeast` holds a stream until it has reached a value;
// values compare cyclically, as signed 64-bit distances. The memory must stay mapped for as long as
// streams use it, which is longer than a StreamWords may live: the owner waits for its streams
// first. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "ipc/base/result.h"
#include "transport/memory/cuda_handles.h"

namespace headrace::transport {

enum class WordMeans : std::uint8_t {
  kStream,    // the GPU itself writes and polls: cuStreamWriteValue64, cuStreamWaitValue64
  kHostCall,  // a thread of the driver does, called in stream order: slower, but everywhere
};
// What `device` can do.
Result<WordMeans> WordMeansOf(const CudaDriver& driver, CuDevice device);

// Writes and waits of one StreamWords that host calls have not yet carried out. More are refused
// with kBusy. So are those of a second stream: a driver may make host calls one at a time, and a
// wait that is made first would hold back the write that it waits for.
inline constexpr std::size_t kHostCallsMax = 4096;

class StreamWords {
 public:
  // Pins `size` bytes at `memory` (both page aligned; a channel's mapping, say) for all GPUs.
  static Result<std::unique_ptr<StreamWords>> Pin(const PrimaryContext& context, void* memory,
                                                  std::size_t size, WordMeans means);
  ~StreamWords();

  WordMeans means() const { return means_; }

  // Stores `value` at byte `offset` once all that stands before in `stream` is done and seen by
  // all.
  Status Write(CuStream stream, std::size_t offset, std::uint64_t value);
  // What follows in `stream` starts once the word at byte `offset` has reached `value`.
  Status AwaitAtLeast(CuStream stream, std::size_t offset, std::uint64_t value);

 private:
  // What a host call does, and the rest of this: kept by the StreamWords and by every call that the
  // driver has not made yet, whichever is there longer.
  struct HostCalls;

  StreamWords(HostRegistration registration, void* memory, std::size_t size, WordMeans means);
  Status CheckOffset(std::size_t offset) const;
  Status CallHost(CuStream stream, std::size_t offset, std::uint64_t value, bool awaits);

  const CudaDriver& driver_;
  CuContext context_;
  std::byte* memory_;
  std::size_t size_;
  WordMeans means_;
  CuAddress device_address_ = 0;
  HostRegistration registration_;
  std::shared_ptr<HostCalls> calls_;  // with kHostCall only; also owned by calls not yet made
};

}  // namespace headrace::transport
