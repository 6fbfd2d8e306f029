// The words of a channel for the streams of one GPU: pinned memory that streams write and wait for
// in stream order.
//
// Thread-safe. It has a mapping of its own, which may outlive the channel, because a stream may
// reach a word later. After each use of a stream an event is recorded in it. The event tells when
// the stream has passed this session's work, even if the stream was destroyed since.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "client/lib/operations.h"
#include "ipc/base/fd.h"
#include "ipc/base/result.h"
#include "ipc/channel.h"
#include "transport/memory/cuda_handles.h"
#include "transport/memory/stream_words.h"

namespace headrace::client {

// Streams of one GPU in which something of a session stands at one time.
inline constexpr std::size_t kStreamsMax = 256;

class GpuWords {
 public:
  // Pins completion and ready words of `channel` for the GPU of `context`, which outlives this.
  static Result<std::unique_ptr<GpuWords>> Pin(const transport::PrimaryContext& context,
                                               ipc::ChannelLayout& channel);

  // Refuses a stream that is being captured into a graph, without a call that would end the
  // capture, as pinning does.
  static Status CheckNotCaptured(const transport::PrimaryContext& context,
                                 transport::CuStream stream);

  // The ready word of operation `sequence` becomes that once `stream` has come this far.
  Status WriteReady(transport::CuStream stream, std::uint64_t sequence);
  // What follows in `stream` starts once operation `sequence` has ended, well or badly.
  Status AwaitEnd(transport::CuStream stream, std::uint64_t sequence);

  transport::WordMeans means() const { return words_->means(); }
  // Whether all streams have passed all of this.
  bool HavePassed();
  // Leaves the words pinned and mapped until the process ends: a stream may still reach for them.
  static void Abandon(std::unique_ptr<GpuWords> words);

 private:
  GpuWords(const transport::PrimaryContext& context, Mapping pages,
           std::unique_ptr<transport::StreamWords> words)
      : context_(context), pages_(std::move(pages)), words_(std::move(words)) {}
  // Where a mark is kept for the stream; made for a stream that is new here.
  Result<transport::CuEvent> MarkOf(transport::CuStream stream);
  void Mark(transport::CuStream stream, transport::CuEvent mark);
  bool HasPassed(transport::CuEvent mark) const;

  const transport::PrimaryContext& context_;
  Mapping pages_;
  std::mutex mutex_;
  std::unique_ptr<transport::StreamWords> words_;              // guarded by mutex_
  std::map<transport::CuStream, transport::CudaEvent> marks_;  // guarded by mutex_
  bool is_unmarked_ = false;  // guarded by mutex_; something stands in a stream without a mark
};

// The stream that says when memory is ready.
class StreamSignal final : public ReadySignal {
 public:
  StreamSignal(GpuWords& words, transport::CuStream stream) : words_(words), stream_(stream) {}
  Status Promise(std::uint64_t sequence) override { return words_.WriteReady(stream_, sequence); }

 private:
  GpuWords& words_;
  const transport::CuStream stream_;
};

}  // namespace headrace::client
