// The double's own limits, which are those of a GPU: hardware queues that streams share, room for
// threads, copies that end after their call has returned, and exact unbinding.
#include <array>
#include <atomic>
#include <cstdlib>
#include <thread>

#include "tests/support/device_memory.h"
#include "tests/unit/transport/memory/double_test.h"
#include "transport/memory/device_arena.h"

namespace headrace::transport {
namespace {

using cuda_double::Environment;

constexpr std::size_t kPageOfGpu = std::size_t{2} << 20;

std::atomic<bool>& GateIsOpen() {
  static std::atomic<bool> open = false;
  return open;
}
std::atomic<bool>& Seen() {
  static std::atomic<bool> seen = false;
  return seen;
}

void AwaitGate() {
  while (!GateIsOpen()) std::this_thread::yield();
}
void AwaitGateInStream(void* /*argument*/) { AwaitGate(); }
// Kernels that have begun and wait: a double with delays may begin one long after its launch.
std::atomic<int>& Waiting() {
  static std::atomic<int> waiting = 0;
  return waiting;
}
void AwaitGateInKernel(const CudaDoubleLaunch* /*launch*/) {
  ++Waiting();
  AwaitGate();
}
void LookAtGate(const CudaDoubleLaunch* /*launch*/) { Seen() = GateIsOpen().load(); }

// Streams and kernels of GPU 0, whose context is current. The default stream has the first hardware
// queue, and streams get the others by turns.
class DoubleOfHardware : public DoubleTest {
 protected:
  void StartWith(const char* connections) {
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections, 1);
    GateIsOpen() = false;
    Seen() = false;
    Waiting() = 0;
    Start();
    doubled_.kernel("await_gate", &AwaitGateInKernel, nullptr, 0);
    doubled_.kernel("look_at_gate", &LookAtGate, nullptr, 0);
    auto module = LoadModule(contexts_[0], "// kernels of the test");
    ASSERT_TRUE(module.ok());
    module_ = std::move(*module);
    await_gate_ = *FindKernel(module_, "await_gate");
    look_at_gate_ = *FindKernel(module_, "look_at_gate");
    for (CudaStream& stream : streams_) {
      auto made = CreateStream(contexts_[0], kCuStreamNonBlocking, 0);
      ASSERT_TRUE(made.ok());
      stream = std::move(*made);
    }
    ASSERT_EQ(call().ctx_push(contexts_[0].get().context), CuResult::kSuccess);
  }
  void TearDown() override {
    GateIsOpen() = true;
    CuContext popped = nullptr;
    EXPECT_EQ(call().ctx_synchronize(), CuResult::kSuccess);
    EXPECT_EQ(call().ctx_pop(&popped), CuResult::kSuccess);
    for (CudaStream& stream : streams_) stream.reset();
    module_.reset();
    ::unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    DoubleTest::TearDown();
  }
  CuStream At(std::size_t index) const { return streams_[index].get().thing; }
  CuResult Launch(CuFunction kernel, std::size_t stream, unsigned threads) const {
    return call().launch_kernel(kernel, 1, 1, 1, threads, 1, 1, 0, At(stream), nullptr, nullptr);
  }

  CudaModule module_;
  CuFunction await_gate_ = nullptr;
  CuFunction look_at_gate_ = nullptr;
  std::array<CudaStream, 3> streams_;
};

TEST_F(DoubleOfHardware, LetsStreamsOfOneQueueWaitForWhatWaitsBeforeThem) {
  StartWith("2");
  // Queues: 1, 0, 1.
  ASSERT_EQ(call().launch_host_call(At(0), &AwaitGateInStream, nullptr), CuResult::kSuccess);
  ASSERT_EQ(Launch(look_at_gate_, 2, 32), CuResult::kSuccess);
  ASSERT_EQ(Launch(look_at_gate_, 1, 32), CuResult::kSuccess);
  EXPECT_EQ(call().stream_synchronize(At(1)), CuResult::kSuccess) << "the other queue goes on";
  EXPECT_FALSE(Seen());
  GateIsOpen() = true;
  EXPECT_EQ(call().stream_synchronize(At(2)), CuResult::kSuccess);
  EXPECT_TRUE(Seen()) << "it ran before the host call that stands before it had ended";
}

TEST_F(DoubleOfHardware, KeepsAQueueOnlyUntilAKernelHasBegun) {
  StartWith("1");
  ASSERT_EQ(Launch(await_gate_, 0, 32), CuResult::kSuccess);
  ASSERT_EQ(Launch(look_at_gate_, 1, 32), CuResult::kSuccess);
  EXPECT_EQ(call().stream_synchronize(At(1)), CuResult::kSuccess) << "kernels run side by side";
  EXPECT_FALSE(Seen());
}

TEST_F(DoubleOfHardware, HasRoomForAsManyThreadsAsItsMultiprocessors) {
  const Environment small{{"MULTIPROCESSORS", "1"}};
  StartWith("8");
  ASSERT_EQ(Launch(await_gate_, 0, 1024), CuResult::kSuccess);
  ASSERT_EQ(Launch(await_gate_, 1, 1024), CuResult::kSuccess);
  while (Waiting() < 2) std::this_thread::yield();
  ASSERT_EQ(Launch(look_at_gate_, 2, 32), CuResult::kSuccess);
  const auto memory = AllocateDeviceMemory(contexts_[0], 64);
  ASSERT_TRUE(memory.ok());
  ASSERT_EQ(call().memset_async(memory->get().thing, 1, 64, nullptr), CuResult::kSuccess);
  EXPECT_EQ(call().stream_synchronize(nullptr), CuResult::kSuccess) << "copies need no room";
  GateIsOpen() = true;
  EXPECT_EQ(call().stream_synchronize(At(2)), CuResult::kSuccess);
  EXPECT_TRUE(Seen()) << "it ran beside 2048 threads on a GPU that has room for as many";
}

// What NCCL's order of launches is made of.
TEST_F(DoubleOfHardware, PassesAnEventOfLaunchCompletionOnceTheKernelHasBegun) {
  const Environment small{{"MULTIPROCESSORS", "1"}};
  StartWith("8");
  auto made = CreateEvent(contexts_[0]);
  ASSERT_TRUE(made.ok());
  const CuEvent event = made->get().thing;
  ASSERT_EQ(Launch(await_gate_, 0, 1024), CuResult::kSuccess);
  ASSERT_EQ(Launch(await_gate_, 0, 1024), CuResult::kSuccess);
  while (Waiting() < 1) std::this_thread::yield();
  CudaDoubleLaunchAttribute attribute{};
  attribute.id = CudaDoubleLaunchAttribute::kLaunchCompletionEvent;
  attribute.event = event;
  const CudaDoubleLaunchConfig config{.grid = {1, 1, 1},
                                      .block = {2048 / 2, 1, 1},
                                      .shared_size = 0,
                                      .stream = At(1),
                                      .attributes = &attribute,
                                      .attributes_count = 1};
  // Beside the first, there is room for it, and it has not ended when the event passes.
  ASSERT_EQ(doubled_.launch_ex(&config, await_gate_, nullptr, nullptr), CuResult::kSuccess);
  EXPECT_EQ(call().event_synchronize(event), CuResult::kSuccess);
  EXPECT_EQ(call().stream_query(At(1)), CuResult::kNotReady);
  // Behind one that waits in the same stream it has not begun.
  ASSERT_EQ(doubled_.launch_ex(&config, look_at_gate_, nullptr, nullptr), CuResult::kSuccess);
  EXPECT_EQ(call().event_query(event), CuResult::kNotReady);
  GateIsOpen() = true;
  EXPECT_EQ(call().event_synchronize(event), CuResult::kSuccess);
}

TEST_F(DoubleOfHardware, EndsACopyFromPageableMemoryAfterItsCallHasReturned) {
  StartWith("1");
  const auto memory = AllocateDeviceMemory(contexts_[0], 64);
  ASSERT_TRUE(memory.ok());
  ASSERT_EQ(call().launch_host_call(At(0), &AwaitGateInStream, nullptr), CuResult::kSuccess);
  unsigned char byte = 7;
  EXPECT_EQ(call().memcpy_to_device(memory->get().thing, &byte, 1), CuResult::kSuccess);
  EXPECT_EQ(call().stream_query(nullptr), CuResult::kNotReady) << "the copy cannot have begun";
  byte = 8;
  GateIsOpen() = true;
  EXPECT_EQ(call().ctx_synchronize(), CuResult::kSuccess);
  EXPECT_EQ(call().memcpy_to_host(&byte, memory->get().thing, 1), CuResult::kSuccess);
  EXPECT_EQ(byte, 7) << "what it was when the call was made";
}

TEST_F(DoubleOfHardware, UnbindsExactlyWhatACallHasBound) {
  const Environment able{{"MULTICAST", "2"}};
  StartWith("8");
  const CudaMulticast& multicast = *driver_->multicast();
  const CuMulticastProperties properties{.devices_count = 2, .size = 2 * kPageOfGpu};
  CuMemory object = 0;
  ASSERT_EQ(multicast.create(&object, &properties), CuResult::kSuccess);
  const VmmMemory owned({driver_.get(), object});
  for (const CuDevice device : {0, 1}) {
    ASSERT_EQ(multicast.add_device(object, device), CuResult::kSuccess);
  }
  const auto first = DeviceArena::Allocate(*driver_, 0, kPageOfGpu);
  const auto second = DeviceArena::Allocate(*driver_, 0, kPageOfGpu);
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_EQ(multicast.bind_address(object, 0, first->address(), kPageOfGpu, 0), CuResult::kSuccess);
  ASSERT_EQ(multicast.bind_address(object, kPageOfGpu, second->address(), kPageOfGpu, 0),
            CuResult::kSuccess);
  EXPECT_EQ(multicast.unbind(object, 0, 0, 2 * kPageOfGpu), CuResult::kInvalidValue)
      << "both at once";
  EXPECT_EQ(multicast.unbind(object, 0, 0, kPageOfGpu / 2), CuResult::kInvalidValue);
  EXPECT_EQ(multicast.unbind(object, 0, kPageOfGpu, kPageOfGpu), CuResult::kSuccess);
  EXPECT_EQ(multicast.unbind(object, 0, kPageOfGpu, kPageOfGpu), CuResult::kInvalidValue);
  EXPECT_EQ(multicast.unbind(object, 0, 0, kPageOfGpu), CuResult::kSuccess);
}

}  // namespace
}  // namespace headrace::transport
