// Handles: each releases what it holds, once, and leaves the current context alone.
#include "transport/memory/cuda_handles.h"

#include "tests/support/device_memory.h"
#include "tests/unit/transport/memory/double_test.h"

namespace headrace::transport {
namespace {

class CudaHandles : public DoubleTest {
 protected:
  CuContext CurrentNow() const {
    CuContext current = nullptr;
    EXPECT_EQ(call().ctx_get_current(&current), CuResult::kSuccess);
    return current;
  }
};

TEST_F(CudaHandles, ShareAPrimaryContext) {
  Start();
  auto again = RetainPrimaryContext(*driver_, 0);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->get().context, contexts_[0].get().context);
  EXPECT_NE(contexts_[1].get().context, contexts_[0].get().context);
  EXPECT_EQ(counts().context_uses, 3U);
}

TEST_F(CudaHandles, PutBackTheContextThatWasCurrent) {
  Start();
  const CurrentContext outer(*driver_, contexts_[1].get().context);
  {
    auto stream = CreateStream(contexts_[0], kCuStreamNonBlocking, 0);
    ASSERT_TRUE(stream.ok()) << stream.error().text();
    EXPECT_EQ(CurrentNow(), contexts_[1].get().context);
  }
  EXPECT_EQ(CurrentNow(), contexts_[1].get().context);
}

TEST_F(CudaHandles, GiveBackAThousandOfEach) {
  Start();
  auto words = HostPages(4096);
  for (int i = 0; i < 1000; ++i) {
    const auto memory = AllocateDeviceMemory(contexts_[0], 4096);
    const auto stream = CreateStream(contexts_[0], kCuStreamDefault, 0);
    const auto event = CreateEvent(contexts_[1]);
    const auto module = LoadModule(contexts_[1], "// PTX\n.version 8.0\n");
    const auto pinned = RegisterHostMemory(contexts_[0], words.data(), words.size());
    ASSERT_TRUE(memory.ok() && stream.ok() && event.ok() && module.ok() && pinned.ok());
    if (i != 0) continue;
    const auto held = counts();
    EXPECT_EQ(held.allocations, 1U);
    EXPECT_EQ(held.streams, 1U);
    EXPECT_EQ(held.events, 1U);
    EXPECT_EQ(held.modules, 1U);
    EXPECT_EQ(held.host_registrations, 1U);
  }
}

TEST_F(CudaHandles, SayWhatFailed) {
  Start();
  doubled_.fail("cuStreamCreateWithPriority", 2, CuResult::kOutOfMemory);
  EXPECT_EQ(TextOf(CreateStream(contexts_[0], 0, 0)), "ok");
  EXPECT_EQ(TextOf(CreateStream(contexts_[0], 0, 0)),
            "create a stream: CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
  EXPECT_EQ(TextOf(CreateStream(contexts_[0], 0, 0)), "ok");
  EXPECT_EQ(TextOf(LoadModule(contexts_[0], "no image at all")),
            "load kernels: CUDA_ERROR_INVALID_IMAGE (device kernel image is invalid)");
  EXPECT_EQ(TextOf(RetainPrimaryContext(*driver_, 9)),
            "make a context on GPU 9: CUDA_ERROR_INVALID_DEVICE (invalid device ordinal)");
}

TEST_F(CudaHandles, CountReleasesThatTheDriverRefuses) {
  Start();
  {
    const auto event = CreateEvent(contexts_[0]);
    ASSERT_TRUE(event.ok());
    doubled_.fail("cuEventDestroy", 1, CuResult::kInvalidHandle);
  }
  EXPECT_EQ(driver_->releases_failed(), 1U);
  EXPECT_EQ(counts().events, 1U);
  contexts_.clear();  // the context takes the event along
  EXPECT_EQ(counts().lost_with_context, 1U);
  driver_ = nullptr;
  doubled_.restart();
}

TEST_F(CudaHandles, RefuseToMapMoreThanThereIs) {
  Start();
  constexpr std::size_t kSize = std::size_t{2} << 20;
  CuAllocationProperties properties;
  properties.location = {CuLocationType::kDevice, 0};
  CuMemory made = 0;
  ASSERT_EQ(call().mem_create(&made, kSize, &properties, 0), CuResult::kSuccess);
  const VmmMemory memory({driver_.get(), made});
  const auto reservation = ReserveAddresses(*driver_, 2 * kSize);
  ASSERT_TRUE(reservation.ok());
  EXPECT_EQ(TextOf(MapMemory(memory, reservation->get().address, 2 * kSize)),
            "map 4194304 bytes of GPU memory: CUDA_ERROR_INVALID_VALUE (invalid argument)");
  EXPECT_EQ(TextOf(MapMemory(memory, reservation->get().address, kSize)), "ok");
}

}  // namespace
}  // namespace headrace::transport
