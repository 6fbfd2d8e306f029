// Streams: each a thread that carries out what was posted, in order, when what it comes after is
// done.
#include <algorithm>
#include <thread>
#include <utility>

#include "tests/support/cuda_double/machine.h"

namespace headrace::cuda_double {
namespace {

Device& DeviceOf(const StreamState& stream) {
  return TheMachine().devices[static_cast<std::size_t>(stream.ordinal)];
}

// Streams share a GPU's hardware queues, "concurrent connections (work queues) from the host" (CUDA
// Programming Guide, CUDA Environment Variables, CUDA_DEVICE_MAX_CONNECTIONS). Assumed, as what
// such a queue is known for: each begins what stands in it in the order of the posts, so that what
// waits there, for a word or for the host, holds up other streams' work behind it.
bool IsFirst(const StreamState& stream, const StreamOperation& operation) {
  const auto& queue = DeviceOf(stream).queues[stream.hardware_queue];
  return !queue.empty() && queue.front() == operation.number;
}

void LeaveQueue(const StreamState& stream, const StreamOperation& operation) {
  if (std::erase(DeviceOf(stream).queues[stream.hardware_queue], operation.number) != 0) {
    TheMachine().changed.notify_all();
  }
}

// A kernel begins when all of its threads fit beside those that run: a multiprocessor has room for
// so many (CUDA Programming Guide, Compute Capabilities). Assumed: blocks that run stay until they
// end, however long they wait for something; and all of a kernel begin at once, where a GPU begins
// as many as there is room for.
bool Fits(const Device& device, const StreamOperation& operation) {
  const auto all =
      static_cast<std::uint64_t>(TheMachine().settings.multiprocessors) * kThreadsResident;
  return device.resident == 0 || device.resident + operation.threads <= all;
}

// Waits for its turn. False: its context is broken or gone, and nothing of it is done.
bool TryBegin(Lock& lock, const StreamState& stream, const StreamOperation& operation) {
  Device& device = DeviceOf(stream);
  TheMachine().changed.wait(lock, [&] {
    return IsBroken(stream) ||
           (IsFirst(stream, operation) && (operation.threads == 0 || Fits(device, operation)));
  });
  if (IsBroken(stream)) return false;
  device.resident += operation.threads;
  if (operation.holds == Holds::kNothing) LeaveQueue(stream, operation);
  return true;
}

void RunStream(const std::shared_ptr<StreamState>& stream) {
  Machine& machine = TheMachine();
  Device& device = DeviceOf(*stream);
  Lock lock(machine.mutex);
  for (;;) {
    machine.changed.wait(lock, [&] { return !stream->queue.empty() || stream->closed; });
    if (stream->queue.empty()) return;
    const StreamOperation operation = std::move(stream->queue.front());
    stream->queue.pop_front();
    for (const Point& point : operation.after) {
      machine.changed.wait(lock, [&] { return IsDone(point) || IsBroken(*stream); });
    }
    CuResult result = CuResult::kSuccess;
    const bool begins = TryBegin(lock, *stream, operation);
    ++stream->begun;
    machine.changed.notify_all();
    if (begins) {
      const auto delay = RandomDelay();
      lock.unlock();
      if (delay.count() != 0) std::this_thread::sleep_for(delay);
      result = operation.run();
      lock.lock();
      device.resident -= std::min(device.resident, operation.threads);
    }
    LeaveQueue(*stream, operation);
    if (result != CuResult::kSuccess && !stream->abandoned) device.sticky = result;
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
  if (!point.stream || point.stream->abandoned) return true;
  return (point.at_begin ? point.stream->begun : point.stream->done) >= point.ticket;
}

std::shared_ptr<StreamState> StartStream(int ordinal, bool blocking) {
  auto stream = std::make_shared<StreamState>();
  stream->ordinal = ordinal;
  stream->blocking = blocking;
  Device& device = DeviceOf(*stream);
  const auto count = static_cast<std::size_t>(TheMachine().settings.queues_count);
  stream->hardware_queue = device.next_queue++ % count;
  auto& started = device.started;
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

Point Post(const std::shared_ptr<StreamState>& stream, std::function<CuResult()> run, Posted how) {
  Machine& machine = TheMachine();
  Device& device = DeviceOf(*stream);
  std::vector<Point>& after = how.after;
  const auto& first = device.default_stream;
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
  if (machine.breaking != CuResult::kSuccess) {
    // Asynchronous errors come to light at later calls: "this function may also return error codes
    // from previous, asynchronous launches" (CUDA Driver API, a note on the pages of most
    // functions).
    run = [broken = std::exchange(machine.breaking, CuResult::kSuccess)] { return broken; };
  }
  const std::uint64_t number = ++machine.serial;
  device.queues[stream->hardware_queue].push_back(number);
  stream->queue.push_back({.run = std::move(run),
                           .after = std::move(after),
                           .number = number,
                           .holds = how.holds,
                           .threads = how.threads});
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
