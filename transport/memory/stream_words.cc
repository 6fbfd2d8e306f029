#include "transport/memory/stream_words.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "ipc/base/check.h"
#include "transport/memory/cuda_device.h"

namespace headrace::transport {
namespace {

// Between two looks at an awaited word. The driver's thread does nothing else meanwhile; waits are
// as long as a collective takes.
constexpr std::chrono::microseconds kLookEvery(20);

bool HasReached(std::uint64_t word, std::uint64_t value) {
  return static_cast<std::int64_t>(word - value) >= 0;
}

}  // namespace

// Once `ended` is set under the mutex, no call touches the words any more.
struct StreamWords::HostCalls {
  struct Call {
    std::shared_ptr<HostCalls> keeps;  // empty: this place is free
    std::uint64_t* word = nullptr;
    std::uint64_t value = 0;
    bool awaits = false;
  };

  // Whether the call is done: the word written or reached, or nobody cares any more.
  bool TryDo(const Call& call) {
    const std::lock_guard lock(mutex);
    if (ended) return true;
    const std::atomic_ref<std::uint64_t> word(*call.word);
    if (call.awaits) return HasReached(word, call.value);
    word = call.value;
    return true;
  }

  // Calls of one stream end in the order in which they were taken. Null: none is free, or another
  // stream's calls wait.
  Call* Acquire(const std::shared_ptr<HostCalls>& self, CuStream of) {
    const std::lock_guard lock(mutex);
    if (waiting == kHostCallsMax || (waiting != 0 && of != stream)) return nullptr;
    stream = of;
    ++waiting;
    Call& call = calls[next];
    next = (next + 1) % kHostCallsMax;
    HR_CHECK(call.keeps == nullptr && waiting <= kHostCallsMax, waiting);
    call.keeps = self;
    return &call;
  }

  std::shared_ptr<HostCalls> Free(Call& call) {
    const std::lock_guard lock(mutex);
    HR_CHECK(waiting > 0 && call.keeps != nullptr, waiting);
    --waiting;
    return std::move(call.keeps);
  }

  // Undoes the call that was taken last, and that nobody will make.
  void Undo(Call& call) {
    Free(call);
    const std::lock_guard lock(mutex);
    next = (next + kHostCallsMax - 1) % kHostCallsMax;
  }

  static void Run(void* argument) {
    Call& call = *static_cast<Call*>(argument);
    while (!call.keeps->TryDo(call)) std::this_thread::sleep_for(kLookEvery);
    // May be the last owner, and is let go only after its mutex is.
    const auto last = call.keeps->Free(call);
  }

  std::mutex mutex;
  bool ended = false;
  std::size_t waiting = 0;
  std::size_t next = 0;
  CuStream stream = nullptr;
  std::array<Call, kHostCallsMax> calls;
};

Result<WordMeans> WordMeansOf(const CudaDriver& driver, CuDevice device) {
  const auto described = DescribeDevice(driver, device);
  if (!described) return described.error();
  return described->stream_words ? WordMeans::kStream : WordMeans::kHostCall;
}

StreamWords::StreamWords(HostRegistration registration, void* memory, std::size_t size,
                         WordMeans means)
    : driver_(*registration.get().driver),
      context_(registration.get().context),
      memory_(static_cast<std::byte*>(memory)),
      size_(size),
      means_(means),
      registration_(std::move(registration)) {
  if (means == WordMeans::kHostCall) calls_ = std::make_shared<HostCalls>();
}

StreamWords::~StreamWords() {
  if (!calls_) return;
  const std::lock_guard lock(calls_->mutex);
  calls_->ended = true;
}

Result<std::unique_ptr<StreamWords>> StreamWords::Pin(const PrimaryContext& context, void* memory,
                                                      std::size_t size, WordMeans means) {
  auto registration = RegisterHostMemory(context, memory, size);
  if (!registration) return registration.error();
  HR_CHECK(reinterpret_cast<std::uintptr_t>(memory) % sizeof(std::uint64_t) == 0 &&
               size >= sizeof(std::uint64_t),
           memory, size);
  std::unique_ptr<StreamWords> words(
      new StreamWords(std::move(*registration), memory, size, means));
  const CurrentContext current(words->driver_, words->context_);
  auto done = words->driver_.Check(current.result(), "pin words");
  if (!done) return done.error();
  done = words->driver_.Check(
      words->driver_.call().mem_host_get_device_pointer(&words->device_address_, memory, 0),
      "ask for the GPU's address of pinned words");
  if (!done) return done.error();
  return words;
}

Status StreamWords::CheckOffset(std::size_t offset) const {
  if (offset % sizeof(std::uint64_t) == 0 && offset < size_) return {};
  return Error(Code::kInvalidArgument,
               fmt::format("no word at offset {} of {} bytes", offset, size_));
}

Status StreamWords::Write(CuStream stream, std::size_t offset, std::uint64_t value) {
  if (auto done = CheckOffset(offset); !done) return done;
  if (means_ == WordMeans::kHostCall) return CallHost(stream, offset, value, false);
  const CurrentContext current(driver_, context_);
  return driver_.Check(
      driver_.call().stream_write_value(stream, device_address_ + offset, value, kCuWriteDefault),
      "write a word in stream order");
}

Status StreamWords::AwaitAtLeast(CuStream stream, std::size_t offset, std::uint64_t value) {
  if (auto done = CheckOffset(offset); !done) return done;
  if (means_ == WordMeans::kHostCall) return CallHost(stream, offset, value, true);
  const CurrentContext current(driver_, context_);
  return driver_.Check(driver_.call().stream_wait_value(stream, device_address_ + offset, value,
                                                        kCuWaitGreaterOrEqual),
                       "await a word in stream order");
}

Status StreamWords::CallHost(CuStream stream, std::size_t offset, std::uint64_t value,
                             bool awaits) {
  HostCalls::Call* call = calls_->Acquire(calls_, stream);
  if (call == nullptr) {
    return Error(Code::kBusy, fmt::format("host calls of another stream wait, or {} of this one",
                                          kHostCallsMax));
  }
  call->word = reinterpret_cast<std::uint64_t*>(memory_ + offset);
  call->value = value;
  call->awaits = awaits;
  const CurrentContext current(driver_, context_);
  const CuResult result = driver_.call().launch_host_call(stream, &HostCalls::Run, call);
  if (result != CuResult::kSuccess) {
    calls_->Undo(*call);
    return driver_.Failed(result, "call the host in stream order");
  }
  return {};
}

}  // namespace headrace::transport
