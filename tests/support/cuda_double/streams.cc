// Streams: each a thread that carries out what was posted, in order, when what it comes after is
// done.
#include <thread>
#include <utility>

#include "tests/support/cuda_double/machine.h"

namespace headrace::cuda_double {
namespace {

void RunStream(const std::shared_ptr<StreamState>& stream) {
  Machine& machine = TheMachine();
  Lock lock(machine.mutex);
  for (;;) {
    machine.changed.wait(lock, [&] { return !stream->queue.empty() || stream->closed; });
    if (stream->queue.empty()) return;
    const Operation operation = std::move(stream->queue.front());
    stream->queue.pop_front();
    for (const Point& point : operation.after) {
      machine.changed.wait(lock, [&] { return IsDone(point) || IsBroken(*stream); });
    }
    CuResult result = CuResult::kSuccess;
    if (!IsBroken(*stream)) {
      lock.unlock();
      result = operation.run();
      lock.lock();
    }
    if (result != CuResult::kSuccess && !stream->abandoned) {
      machine.devices[static_cast<std::size_t>(stream->ordinal)].sticky = result;
    }
    ++stream->done;
    machine.changed.notify_all();
  }
}

}  // namespace

bool IsBroken(const StreamState& stream) {
  const Device& device = TheMachine().devices[static_cast<std::size_t>(stream.ordinal)];
  return stream.abandoned || device.sticky != CuResult::kSuccess;
}

bool IsDone(const Point& point) {
  return !point.stream || point.stream->done >= point.ticket || point.stream->abandoned;
}

std::shared_ptr<StreamState> StartStream(int ordinal, bool blocking) {
  auto stream = std::make_shared<StreamState>();
  stream->ordinal = ordinal;
  stream->blocking = blocking;
  auto& started = TheMachine().devices[static_cast<std::size_t>(ordinal)].started;
  std::erase_if(started, [](const auto& other) { return other.expired(); });
  started.push_back(stream);
  // Ends by itself once the stream is closed; a process that ends does not wait for it.
  std::thread(RunStream, stream).detach();
  return stream;
}

CuResult FindStream(CuStream stream, std::shared_ptr<StreamState>& found, Needs needs) {
  Machine& machine = TheMachine();
  if (needs == Needs::kContext) {
    if (const CuResult none = NeedContext(); none != CuResult::kSuccess) return none;
  }
  const auto token = reinterpret_cast<std::uintptr_t>(stream);
  if (token <= 1) {  // nullptr and CU_STREAM_LEGACY
    int ordinal = 0;
    const CuResult result = CurrentOrdinal(ordinal);
    if (result != CuResult::kSuccess) return result;
    found = machine.devices[static_cast<std::size_t>(ordinal)].default_stream;
    return CuResult::kSuccess;
  }
  const auto entry = machine.streams.find(stream);
  if (entry == machine.streams.end()) return CuResult::kInvalidHandle;
  found = entry->second;
  return machine.devices[static_cast<std::size_t>(found->ordinal)].sticky;
}

Point Post(const std::shared_ptr<StreamState>& stream, std::function<CuResult()> run,
           std::vector<Point> after) {
  Machine& machine = TheMachine();
  const auto& first = machine.devices[static_cast<std::size_t>(stream->ordinal)].default_stream;
  if (stream == first) {
    // The legacy default stream comes after all that stands in the blocking ones...
    for (const auto& [token, other] : machine.streams) {
      if (other->ordinal != stream->ordinal || !other->blocking) continue;
      after.push_back({other, other->posted});
    }
  } else if (stream->blocking) {
    // ... and they after all that stands in it.
    after.push_back({first, first->posted});
  }
  stream->queue.push_back({std::move(run), std::move(after)});
  ++stream->posted;
  machine.changed.notify_all();
  return {stream, stream->posted};
}

CuResult WaitFor(Lock& lock, const Point& point) {
  Machine& machine = TheMachine();
  if (!point.stream) return CuResult::kSuccess;
  machine.changed.wait(lock, [&] { return IsDone(point); });
  return machine.devices[static_cast<std::size_t>(point.stream->ordinal)].sticky;
}

CuResult WaitForDevice(Lock& lock, int ordinal) {
  Machine& machine = TheMachine();
  const Device& device = machine.devices[static_cast<std::size_t>(ordinal)];
  std::vector<Point> points;
  if (device.default_stream)
    points.push_back({device.default_stream, device.default_stream->posted});
  // Also what stands in streams that were destroyed meanwhile.
  for (const std::weak_ptr<StreamState>& started : device.started) {
    if (const auto stream = started.lock()) points.push_back({stream, stream->posted});
  }
  for (const Point& point : points) WaitFor(lock, point);
  return device.sticky;
}

}  // namespace headrace::cuda_double
