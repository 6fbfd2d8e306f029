// Streams, events, words and calls of the host (CUDA Driver API, Stream Management, Event
// Management, Stream Memory Operations, Execution Control).
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "tests/support/cuda_double/machine.h"

namespace headrace::cuda_double {
namespace {

constexpr std::chrono::microseconds kLookEvery(20);

std::atomic_ref<std::uint64_t> WordAt(CuAddress address) {
  return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(address));
}

bool Holds(std::uint64_t word, std::uint64_t value, unsigned flags) {
  switch (flags) {
    case 0:
      return static_cast<std::int64_t>(word - value) >= 0;
    case 1:
      return word == value;
    default:
      return (word & value) != 0;
  }
}

CuResult CheckWord(const StreamState& stream, CuAddress address, bool writes) {
  const Machine& machine = TheMachine();
  if (machine.settings.Lacks("stream_words")) return CuResult::kNotSupported;
  if (address % sizeof(std::uint64_t) != 0) return CuResult::kInvalidValue;
  return MayTouch(stream.ordinal, address, sizeof(std::uint64_t), writes) ? CuResult::kSuccess
                                                                          : CuResult::kInvalidValue;
}

// One look at a word, under the lock, so that it is still there.
CuResult TryWord(int ordinal, CuAddress address, const std::function<void()>& look) {
  const Lock lock(TheMachine().mutex);
  if (!MayTouch(ordinal, address, sizeof(std::uint64_t), false)) return CuResult::kIllegalAddress;
  look();
  return CuResult::kSuccess;
}

CuResult AwaitWord(const std::shared_ptr<StreamState>& stream, CuAddress address,
                   std::uint64_t value, unsigned flags) {
  for (;;) {
    bool done = false;
    const CuResult result = TryWord(stream->ordinal, address, [&] {
      done = IsBroken(*stream) || Holds(WordAt(address), value, flags);
    });
    if (done || result != CuResult::kSuccess) return result;
    std::this_thread::sleep_for(kLookEvery);
  }
}

}  // namespace
}  // namespace headrace::cuda_double

namespace headrace::transport {
using namespace headrace::cuda_double;  // NOLINT(google-build-using-namespace)

CuResult cuStreamCreateWithPriority(CuStream* stream, unsigned flags, int) {
  HR_DOUBLE_ENTER();
  int ordinal = 0;
  if (const CuResult result = CurrentOrdinal(ordinal); result != CuResult::kSuccess) return result;
  if (stream == nullptr || flags > kCuStreamNonBlocking) return CuResult::kInvalidValue;
  *stream = machine.NewToken<CuStream>();
  machine.streams[*stream] = StartStream(ordinal, flags != kCuStreamNonBlocking);
  return CuResult::kSuccess;
}

CuResult cuStreamDestroy_v2(CuStream stream) {
  HR_DOUBLE_ENTER_IN_CONTEXT();
  const auto found = machine.streams.find(stream);
  if (found == machine.streams.end()) return CuResult::kInvalidHandle;
  // Returns at once; what stands in the stream is still done.
  found->second->closed = true;
  machine.streams.erase(found);
  machine.changed.notify_all();
  return CuResult::kSuccess;
}

CuResult cuStreamQuery(CuStream stream) {
  HR_DOUBLE_ENTER();
  std::shared_ptr<StreamState> found;
  if (const CuResult result = FindStream(stream, found); result != CuResult::kSuccess)
    return result;
  return IsDone({found, found->posted}) ? CuResult::kSuccess : CuResult::kNotReady;
}

CuResult cuStreamSynchronize(CuStream stream) {
  HR_DOUBLE_ENTER();
  std::shared_ptr<StreamState> found;
  if (const CuResult result = FindStream(stream, found); result != CuResult::kSuccess)
    return result;
  if (found == machine.devices[static_cast<std::size_t>(found->ordinal)].default_stream) {
    return WaitFor(lock, Post(found, [] { return CuResult::kSuccess; }));
  }
  return WaitFor(lock, {found, found->posted});
}

CuResult cuStreamWaitEvent(CuStream stream, CuEvent event, unsigned flags) {
  HR_DOUBLE_ENTER();
  std::shared_ptr<StreamState> found;
  if (const CuResult result = FindStream(stream, found); result != CuResult::kSuccess)
    return result;
  const auto recorded = machine.events.find(event);
  if (recorded == machine.events.end()) return CuResult::kInvalidHandle;
  if (flags != 0) return CuResult::kInvalidValue;
  // For what was recorded by now; an event that was not counts as passed.
  Post(found, [] { return CuResult::kSuccess; }, {.after = {recorded->second.recorded}});
  return CuResult::kSuccess;
}

CuResult cuStreamWriteValue64_v2(CuStream stream, CuAddress address, std::uint64_t value,
                                 unsigned flags) {
  HR_DOUBLE_ENTER();
  std::shared_ptr<StreamState> found;
  if (const CuResult result = FindStream(stream, found, Needs::kNothing);
      result != CuResult::kSuccess)
    return result;
  if (flags != kCuWriteDefault) return CuResult::kInvalidValue;
  if (const CuResult result = CheckWord(*found, address, true); result != CuResult::kSuccess) {
    return result;
  }
  Post(found, [ordinal = found->ordinal, address, value] {
    return TryWord(ordinal, address, [&] { WordAt(address) = value; });
  });
  return CuResult::kSuccess;
}

CuResult cuStreamWaitValue64_v2(CuStream stream, CuAddress address, std::uint64_t value,
                                unsigned flags) {
  HR_DOUBLE_ENTER();
  std::shared_ptr<StreamState> found;
  if (const CuResult result = FindStream(stream, found, Needs::kNothing);
      result != CuResult::kSuccess)
    return result;
  if (flags > 2) return CuResult::kNotSupported;  // NOR and flushes
  if (const CuResult result = CheckWord(*found, address, false); result != CuResult::kSuccess) {
    return result;
  }
  Post(found, [found, address, value, flags] { return AwaitWord(found, address, value, flags); },
       {.after = {}, .holds = Holds::kQueue});
  return CuResult::kSuccess;
}

CuResult cuLaunchHostFunc(CuStream stream, CuHostCall call, void* argument) {
  HR_DOUBLE_ENTER();
  std::shared_ptr<StreamState> found;
  if (const CuResult result = FindStream(stream, found); result != CuResult::kSuccess)
    return result;
  if (call == nullptr) return CuResult::kInvalidValue;
  auto turn = machine.devices[static_cast<std::size_t>(found->ordinal)].host_calls;
  Post(found,
       [turn = std::move(turn), call, argument] {
         const std::lock_guard alone(*turn);
         call(argument);
         return CuResult::kSuccess;
       },
       {.after = {}, .holds = Holds::kQueue});
  return CuResult::kSuccess;
}

CuResult cuEventCreate(CuEvent* event, unsigned flags) {
  HR_DOUBLE_ENTER();
  int ordinal = 0;
  if (const CuResult result = CurrentOrdinal(ordinal); result != CuResult::kSuccess) return result;
  // Events between processes need a /dev/shm that both see, and are not played.
  if (event == nullptr || (flags & ~kCuEventDisableTiming) != 0) return CuResult::kInvalidValue;
  *event = machine.NewToken<CuEvent>();
  machine.events[*event] = {ordinal, {}};
  return CuResult::kSuccess;
}

CuResult cuEventDestroy_v2(CuEvent event) {
  HR_DOUBLE_ENTER_IN_CONTEXT();
  return machine.events.erase(event) != 0 ? CuResult::kSuccess : CuResult::kInvalidHandle;
}

CuResult cuEventRecord(CuEvent event, CuStream stream) {
  HR_DOUBLE_ENTER();
  std::shared_ptr<StreamState> found;
  if (const CuResult result = FindStream(stream, found); result != CuResult::kSuccess)
    return result;
  const auto entry = machine.events.find(event);
  if (entry == machine.events.end()) return CuResult::kInvalidHandle;
  if (entry->second.ordinal != found->ordinal) return CuResult::kInvalidHandle;
  entry->second.recorded = Post(found, [] { return CuResult::kSuccess; });
  return CuResult::kSuccess;
}

CuResult cuEventQuery(CuEvent event) {
  HR_DOUBLE_ENTER();
  const auto entry = machine.events.find(event);
  if (entry == machine.events.end()) return CuResult::kInvalidHandle;
  // What broke the context is told by every call.
  const Device& device = machine.devices[static_cast<std::size_t>(entry->second.ordinal)];
  if (device.sticky != CuResult::kSuccess) return device.sticky;
  return IsDone(entry->second.recorded) ? CuResult::kSuccess : CuResult::kNotReady;
}

CuResult cuEventSynchronize(CuEvent event) {
  HR_DOUBLE_ENTER_IN_CONTEXT();
  const auto entry = machine.events.find(event);
  if (entry == machine.events.end()) return CuResult::kInvalidHandle;
  const Point recorded = entry->second.recorded;  // the event may be destroyed meanwhile
  return WaitFor(lock, recorded);
}

}  // namespace headrace::transport
