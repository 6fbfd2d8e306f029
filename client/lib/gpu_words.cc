#include "client/lib/gpu_words.h"

#include <fmt/format.h>

#include <utility>

namespace headrace::client {
namespace {

using transport::CudaDriver;
using transport::CudaEvent;
using transport::CuEvent;
using transport::CuResult;
using transport::CurrentContext;
using transport::CuStream;

// Completion words and ready words follow each other on pages of their own.
constexpr std::size_t kBegin = offsetof(ipc::ChannelLayout, words);
constexpr std::size_t kSize = offsetof(ipc::ChannelLayout, texts) - kBegin;
constexpr std::size_t kReady = offsetof(ipc::ChannelLayout, ready) - kBegin;
static_assert(kBegin % ipc::kPageSize == 0 && kSize % ipc::kPageSize == 0);
static_assert(kReady == sizeof(ipc::ChannelLayout::words));

std::size_t PlaceOf(std::uint64_t sequence) {
  return sequence % ipc::kOperationsMax * sizeof(std::uint64_t);
}

}  // namespace

Result<std::unique_ptr<GpuWords>> GpuWords::Pin(const transport::PrimaryContext& context,
                                                ipc::ChannelLayout& channel) {
  Result<Mapping> pages = Mapping::Again({reinterpret_cast<std::byte*>(&channel) + kBegin, kSize});
  if (!pages) return pages.error();
  const auto means = transport::WordMeansOf(*context.get().driver, context.get().device);
  if (!means) return means.error();
  auto words = transport::StreamWords::Pin(context, pages->data(), kSize, *means);
  if (!words) return words.error();
  return std::unique_ptr<GpuWords>(
      new GpuWords(context, std::move(pages).value(), std::move(words).value()));
}

// A graph would write and await one operation's words again at every replay.
Status GpuWords::CheckNotCaptured(const transport::PrimaryContext& context, CuStream stream) {
  constexpr std::uint32_t kNotCapturing = 0;  // CU_STREAM_CAPTURE_STATUS_NONE
  const CudaDriver& driver = *context.get().driver;
  const CurrentContext current(driver, context.get().context);
  std::uint32_t status = kNotCapturing;
  const CuResult asked = driver.call().stream_is_capturing(stream, &status);
  if (asked == CuResult::kSuccess && status == kNotCapturing) return {};
  if (asked != CuResult::kSuccess) {
    return driver.Failed(asked, "ask whether the stream is being captured into a graph");
  }
  return Error(Code::kInvalidArgument,
               "the stream is being captured into a CUDA graph, and an operation that stands in a "
               "graph would not be posted again when it is replayed: post and wait outside of the "
               "capture (torch.cuda.graph, cudaStreamBeginCapture)");
}

Status GpuWords::WriteReady(CuStream stream, std::uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  if (Status checked = CheckNotCaptured(context_, stream); !checked) return checked;
  const Result<CuEvent> mark = MarkOf(stream);
  if (!mark) return mark.error();
  Status written = words_->Write(stream, kReady + PlaceOf(sequence), sequence);
  if (written.ok()) Mark(stream, *mark);
  return written;
}

Status GpuWords::AwaitEnd(CuStream stream, std::uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  if (Status checked = CheckNotCaptured(context_, stream); !checked) return checked;
  const Result<CuEvent> mark = MarkOf(stream);
  if (!mark) return mark.error();
  // The least word that says "ended", whatever code and text stand in its lower half.
  const std::uint64_t ended = ipc::CompletionWord{.sequence = sequence}.Pack();
  Status awaited = words_->AwaitAtLeast(stream, PlaceOf(sequence), ended);
  if (awaited.ok()) Mark(stream, *mark);
  return awaited;
}

Result<CuEvent> GpuWords::MarkOf(CuStream stream) {
  const auto found = marks_.find(stream);
  if (found != marks_.end()) return found->second.get().thing;
  if (marks_.size() >= kStreamsMax) {
    std::erase_if(marks_, [this](const auto& each) { return HasPassed(each.second.get().thing); });
  }
  if (marks_.size() >= kStreamsMax) {
    return Error(Code::kBusy, fmt::format("operations of this session stand in {} streams: that is "
                                          "the most",
                                          kStreamsMax));
  }
  Result<CudaEvent> made = transport::CreateEvent(context_);
  if (!made) return made.error();
  return marks_.emplace(stream, std::move(made).value()).first->second.get().thing;
}

void GpuWords::Mark(CuStream stream, CuEvent mark) {
  const CudaDriver& driver = *context_.get().driver;
  const CurrentContext current(driver, context_.get().context);
  // What stands in the stream cannot be taken out again, so this is no failure of the call.
  if (driver.call().event_record(mark, stream) != CuResult::kSuccess) is_unmarked_ = true;
}

bool GpuWords::HasPassed(CuEvent mark) const {
  const CudaDriver& driver = *context_.get().driver;
  const CurrentContext current(driver, context_.get().context);
  // Any other error: the context has failed, and no stream of it does anything any more.
  return driver.call().event_query(mark) != CuResult::kNotReady;
}

bool GpuWords::HavePassed() {
  const std::lock_guard lock(mutex_);
  if (is_unmarked_) return false;
  for (const auto& [stream, mark] : marks_) {
    if (!HasPassed(mark.get().thing)) return false;
  }
  return true;
}

void GpuWords::Abandon(std::unique_ptr<GpuWords> words) {
  const std::lock_guard lock(words->mutex_);
  words->pages_.Abandon();
  // Its end would take the words away from the GPU.
  [[maybe_unused]] const transport::StreamWords* kept = words->words_.release();
}

}  // namespace headrace::client
