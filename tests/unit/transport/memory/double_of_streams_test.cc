// The double's streams: at their own pace, in order within, ordered with the default stream as CUDA
// has it, and broken for good by what breaks a context.
#include <atomic>
#include <thread>

#include "tests/support/device_memory.h"
#include "tests/unit/transport/memory/double_test.h"

namespace headrace::transport {
namespace {

// A blocker that a stream stands before until it is opened.
struct StreamBlocker {
  std::atomic<bool> open = false;
  static void Pass(void* blocker) {
    while (!static_cast<StreamBlocker*>(blocker)->open) std::this_thread::yield();
  }
};

class DoubleOfStreams : public DoubleTest {
 protected:
  void SetUp() override {
    Start();
    ASSERT_EQ(call().ctx_push(contexts_[0].get().context), CuResult::kSuccess);
  }
  void TearDown() override {
    CuContext popped = nullptr;
    EXPECT_EQ(call().ctx_pop(&popped), CuResult::kSuccess);
    DoubleTest::TearDown();
  }
  CudaStream MakeStream(unsigned flags, std::size_t device = 0) {
    auto made = CreateStream(contexts_[device], flags, 0);
    EXPECT_TRUE(made.ok());
    return std::move(*made);
  }
  CuResult Query(const CudaStream& stream) const { return call().stream_query(stream.get().thing); }
};

TEST_F(DoubleOfStreams, WorkAtTheirOwnPace) {
  StreamBlocker blocker;
  const CudaStream slow = MakeStream(kCuStreamNonBlocking);
  // On another GPU, since host calls of one are made one at a time.
  const CudaStream quick = MakeStream(kCuStreamNonBlocking, 1);
  StreamBlocker passed;
  passed.open = true;
  ASSERT_EQ(call().launch_host_call(slow.get().thing, &StreamBlocker::Pass, &blocker),
            CuResult::kSuccess);
  ASSERT_EQ(call().launch_host_call(quick.get().thing, &StreamBlocker::Pass, &passed),
            CuResult::kSuccess);
  EXPECT_EQ(call().stream_synchronize(quick.get().thing), CuResult::kSuccess);
  EXPECT_EQ(Query(slow), CuResult::kNotReady);
  blocker.open = true;
  EXPECT_EQ(call().stream_synchronize(slow.get().thing), CuResult::kSuccess);
  EXPECT_EQ(Query(slow), CuResult::kSuccess);
}

TEST_F(DoubleOfStreams, KeepOrderWithTheDefaultStreamUnlessTheySayNo) {
  StreamBlocker blocker;
  const CudaStream ordered = MakeStream(kCuStreamDefault);
  const CudaStream free = MakeStream(kCuStreamNonBlocking);
  auto memory = AllocateDeviceMemory(contexts_[0], 4096);
  ASSERT_TRUE(memory.ok());
  const CuAddress address = memory->get().thing;
  ASSERT_EQ(call().launch_host_call(nullptr, &StreamBlocker::Pass, &blocker), CuResult::kSuccess);
  ASSERT_EQ(call().memset_async(address, 1, 64, ordered.get().thing), CuResult::kSuccess);
  ASSERT_EQ(call().memset_async(address + 64, 1, 64, free.get().thing), CuResult::kSuccess);
  EXPECT_EQ(call().stream_synchronize(free.get().thing), CuResult::kSuccess);
  EXPECT_EQ(Query(ordered), CuResult::kNotReady) << "after the default stream";
  blocker.open = true;
  EXPECT_EQ(call().stream_synchronize(ordered.get().thing), CuResult::kSuccess);

  StreamBlocker second;
  ASSERT_EQ(call().launch_host_call(ordered.get().thing, &StreamBlocker::Pass, &second),
            CuResult::kSuccess);
  ASSERT_EQ(call().memset_async(address, 2, 64, nullptr), CuResult::kSuccess);
  EXPECT_EQ(call().stream_query(nullptr), CuResult::kNotReady) << "the default stream after it";
  second.open = true;
  EXPECT_EQ(call().stream_synchronize(nullptr), CuResult::kSuccess);
}

TEST_F(DoubleOfStreams, WaitForWhatAnEventRecordedWhenTheyWereTold) {
  StreamBlocker blocker;
  const CudaStream first = MakeStream(kCuStreamNonBlocking);
  const CudaStream second = MakeStream(kCuStreamNonBlocking);
  auto event = CreateEvent(contexts_[0]);
  ASSERT_TRUE(event.ok());
  const CuEvent mark = event->get().thing;
  EXPECT_EQ(call().event_query(mark), CuResult::kSuccess) << "never recorded counts as passed";
  ASSERT_EQ(call().launch_host_call(first.get().thing, &StreamBlocker::Pass, &blocker),
            CuResult::kSuccess);
  ASSERT_EQ(call().event_record(mark, first.get().thing), CuResult::kSuccess);
  ASSERT_EQ(call().stream_wait_event(second.get().thing, mark, 0), CuResult::kSuccess);
  EXPECT_EQ(call().event_query(mark), CuResult::kNotReady);
  EXPECT_EQ(Query(second), CuResult::kNotReady);
  blocker.open = true;
  EXPECT_EQ(call().event_synchronize(mark), CuResult::kSuccess);
  EXPECT_EQ(call().stream_synchronize(second.get().thing), CuResult::kSuccess);
}

TEST_F(DoubleOfStreams, RefuseAnEventOfAnotherContext) {
  const CudaStream stream = MakeStream(kCuStreamNonBlocking);
  auto event = CreateEvent(contexts_[1]);
  ASSERT_TRUE(event.ok());
  EXPECT_EQ(call().event_record(event->get().thing, stream.get().thing), CuResult::kInvalidHandle);
}

TEST_F(DoubleOfStreams, FinishWhatStandsInThemAfterTheyAreDestroyed) {
  StreamBlocker blocker;
  auto memory = AllocateDeviceMemory(contexts_[0], 4096);
  ASSERT_TRUE(memory.ok());
  {
    const CudaStream stream = MakeStream(kCuStreamNonBlocking);
    ASSERT_EQ(call().launch_host_call(stream.get().thing, &StreamBlocker::Pass, &blocker),
              CuResult::kSuccess);
    ASSERT_EQ(call().memset_async(memory->get().thing, 9, 4096, stream.get().thing),
              CuResult::kSuccess);
  }
  blocker.open = true;
  unsigned char byte = 0;
  while (byte != 9) {
    ASSERT_EQ(call().memcpy_to_host(&byte, memory->get().thing + 4095, 1), CuResult::kSuccess);
  }
}

TEST_F(DoubleOfStreams, ReadHostMemoryThatIsNotPinnedAtTheCall) {
  StreamBlocker blocker;
  const CudaStream stream = MakeStream(kCuStreamNonBlocking);
  auto memory = AllocateDeviceMemory(contexts_[0], 4096);
  ASSERT_TRUE(memory.ok());
  auto pages = HostPages(4096);
  const auto pinned = RegisterHostMemory(contexts_[0], pages.data(), 4096);
  ASSERT_TRUE(pinned.ok());
  unsigned char pageable = 1;
  pages.data()[0] = std::byte{1};
  const CuAddress address = memory->get().thing;
  ASSERT_EQ(call().launch_host_call(stream.get().thing, &StreamBlocker::Pass, &blocker),
            CuResult::kSuccess);
  ASSERT_EQ(
      call().memcpy_async(address, reinterpret_cast<CuAddress>(&pageable), 1, stream.get().thing),
      CuResult::kSuccess);
  ASSERT_EQ(call().memcpy_async(address + 1, reinterpret_cast<CuAddress>(pages.data()), 1,
                                stream.get().thing),
            CuResult::kSuccess);
  pageable = 2;
  pages.data()[0] = std::byte{2};
  blocker.open = true;
  ASSERT_EQ(call().stream_synchronize(stream.get().thing), CuResult::kSuccess);
  unsigned char seen[2] = {};
  ASSERT_EQ(call().memcpy_to_host(seen, address, 2), CuResult::kSuccess);
  EXPECT_EQ(seen[0], 1) << "copied before the call returned";
  EXPECT_EQ(seen[1], 2) << "read when the stream came to it";
}

// Adds one to `count` bytes at its first parameter, or breaks the context.
void AddOne(const CudaDoubleLaunch* launch) {
  static const auto may_touch = cuda_double::LoadDouble().may_touch;
  const auto address = *static_cast<CuAddress*>(launch->parameters[0]);
  const auto count = *static_cast<std::uint32_t*>(launch->parameters[1]);
  if (may_touch(launch->device, address, count, 1) == 0) return;
  for (std::uint32_t i = 0; i < count; ++i) ++reinterpret_cast<unsigned char*>(address)[i];
}

class DoubleOfKernels : public DoubleOfStreams {
 protected:
  void SetUp() override {
    DoubleOfStreams::SetUp();
    const std::size_t sizes[] = {sizeof(CuAddress), sizeof(std::uint32_t)};
    doubled_.kernel("add_one", &AddOne, sizes, 2);
    auto module = LoadModule(contexts_[0], "// PTX\n");
    ASSERT_TRUE(module.ok());
    module_ = std::move(*module);
    const auto found = FindKernel(module_, "add_one");
    ASSERT_TRUE(found.ok());
    kernel_ = *found;
  }
  void TearDown() override {
    module_.reset();
    DoubleOfStreams::TearDown();
  }
  CuResult Launch(CuAddress address, std::uint32_t count, unsigned threads = 32) const {
    void* parameters[] = {&address, &count};
    return call().launch_kernel(kernel_, 1, 1, 1, threads, 1, 1, 0, nullptr, parameters, nullptr);
  }

  CudaModule module_;
  CuFunction kernel_ = nullptr;
};

TEST_F(DoubleOfKernels, RunInStreamOrderWithTheParametersOfTheLaunch) {
  const auto memory = AllocateDeviceMemory(contexts_[0], 4096);
  ASSERT_TRUE(memory.ok());
  ASSERT_EQ(call().memset_async(memory->get().thing, 40, 4096, nullptr), CuResult::kSuccess);
  for (int i = 0; i < 2; ++i) ASSERT_EQ(Launch(memory->get().thing, 4096), CuResult::kSuccess);
  unsigned char byte = 0;
  ASSERT_EQ(call().memcpy_to_host(&byte, memory->get().thing + 4095, 1), CuResult::kSuccess);
  EXPECT_EQ(byte, 42);
}

TEST_F(DoubleOfKernels, RefuseNamesAndShapesThatAreNot) {
  EXPECT_EQ(TextOf(FindKernel(module_, "add_two")),
            "find the kernel add_two: CUDA_ERROR_NOT_FOUND (named symbol not found)");
  EXPECT_EQ(Launch(0, 0, 0), CuResult::kInvalidValue);
  EXPECT_EQ(Launch(0, 0, 1025), CuResult::kInvalidValue);
  const CurrentContext other(*driver_, contexts_[1].get().context);
  EXPECT_EQ(Launch(0, 0), CuResult::kInvalidHandle) << "a module of another context";
}

TEST_F(DoubleOfKernels, BreakTheirContextByAnAddressTheyMayNotTouch) {
  const auto other = AllocateDeviceMemory(contexts_[1], 4096);
  ASSERT_TRUE(other.ok());
  ASSERT_EQ(Launch(other->get().thing, 4096), CuResult::kSuccess) << "it shows later";
  EXPECT_EQ(call().ctx_synchronize(), CuResult::kIllegalAddress);
  EXPECT_EQ(Launch(other->get().thing, 4096), CuResult::kIllegalAddress) << "for good";
  const CurrentContext healthy(*driver_, contexts_[1].get().context);
  EXPECT_EQ(call().ctx_synchronize(), CuResult::kSuccess) << "the other context does not notice";
}

}  // namespace
}  // namespace headrace::transport
