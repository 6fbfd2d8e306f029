// Arenas: memory that was made for being shared.
#include "transport/memory/device_arena.h"

#include <fcntl.h>
#include <unistd.h>

#include "tests/support/expect_text.h"
#include "tests/unit/transport/memory/double_test.h"
#include "transport/memory/cuda_device.h"

namespace headrace::transport {
namespace {

using cuda_double::Environment;

class DeviceArenaTest : public DoubleTest {};

TEST_F(DeviceArenaTest, IsRoundedUpToWhatTheDriverMaps) {
  Start();
  const auto arena = DeviceArena::Allocate(*driver_, 1, 3 * kMiB);
  ASSERT_TRUE(arena.ok()) << arena.error().text();
  EXPECT_EQ(arena->size(), 4 * kMiB);
  EXPECT_EQ(arena->device(), 1);
  const auto held = counts();
  EXPECT_EQ(held.memory_handles, 1U);
  EXPECT_EQ(held.reservations, 1U);
  EXPECT_EQ(held.mappings, 1U);
}

TEST_F(DeviceArenaTest, IsReachableByItsOwnGpuOnly) {
  Start();
  const auto arena = DeviceArena::Allocate(*driver_, 0, kMiB);
  ASSERT_TRUE(arena.ok());
  EXPECT_EQ(doubled_.may_touch(0, arena->address(), arena->size(), 1), 1);
  const CurrentContext other(*driver_, contexts_[1].get().context);
  EXPECT_EQ(call().memset_async(arena->address(), 1, kMiB, nullptr), CuResult::kInvalidValue);
  const CuDevice both[] = {0, 1};
  ASSERT_TRUE(AllowAccess(*driver_, arena->address(), arena->size(), both).ok());
  EXPECT_EQ(call().memset_async(arena->address(), 1, kMiB, nullptr), CuResult::kSuccess);
  EXPECT_EQ(call().ctx_synchronize(), CuResult::kSuccess);
}

TEST_F(DeviceArenaTest, GrantsADescriptorThatIsClosedOnExec) {
  Start();
  const auto arena = DeviceArena::Allocate(*driver_, 1, kMiB);
  ASSERT_TRUE(arena.ok());
  const auto grant = arena->Grant();
  ASSERT_TRUE(grant.ok()) << grant.error().text();
  ASSERT_EQ(grant->fds.size(), 1U);
  EXPECT_EQ(::fcntl(grant->fds[0].get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  EXPECT_EQ(grant->handle.kind, DeviceHandleKind::kPosixFds);
  EXPECT_EQ(grant->handle.device, DescribeDevice(*driver_, 1)->uuid);
  EXPECT_EQ(grant->handle.offset, 0U);
  EXPECT_EQ(grant->handle.size, arena->size());
  EXPECT_EQ(grant->handle.piece_size, arena->size());
  EXPECT_EQ(grant->handle.exporter_pid, static_cast<std::uint32_t>(::getpid()));
}

TEST_F(DeviceArenaTest, SaysWhenTheGpuIsFull) {
  const Environment small{{"MEMORY", std::to_string(4 * kMiB)}};
  Start();
  {
    const auto first = DeviceArena::Allocate(*driver_, 0, 3 * kMiB);
    ASSERT_TRUE(first.ok());
    const auto second = DeviceArena::Allocate(*driver_, 0, kMiB);
    EXPECT_EQ(TextOf(second),
              "allocate 2097152 bytes on GPU 0: CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
    EXPECT_EQ(second.error().code(), Code::kExhausted);
    EXPECT_TRUE(DeviceArena::Allocate(*driver_, 1, kMiB).ok()) << "the other GPU is empty";
  }
  EXPECT_TRUE(DeviceArena::Allocate(*driver_, 0, 4 * kMiB).ok()) << "all of it was given back";
}

TEST_F(DeviceArenaTest, SaysWhatToDoWhereMemoryCannotBeExported) {
  const Environment poor{{"LACKS", "posix_fds"}};
  Start();
  const auto arena = DeviceArena::Allocate(*driver_, 0, kMiB);
  EXPECT_EQ(TextOf(arena),
            "GPU 0 (Double of a GPU) cannot export memory as file descriptors: share memory of "
            "cudaMalloc by CUDA IPC handles instead");
  EXPECT_EQ(arena.error().code(), Code::kUnavailable);
}

TEST_F(DeviceArenaTest, RefusesNonsense) {
  Start();
  EXPECT_EQ(TextOf(DeviceArena::Allocate(*driver_, 0, 0)), "an arena cannot have 0 bytes");
  EXPECT_FALSE(DeviceArena::Allocate(*driver_, 0, kDeviceMemorySizeMax + 1).ok());
  EXPECT_FALSE(DeviceArena::Allocate(*driver_, 5, kMiB).ok());
}

TEST_F(DeviceArenaTest, GivesBackWhatItHeldWhenItBecomesAnother) {
  Start();
  const auto before = cuda_double::CountsOf(doubled_);
  const auto held = counts();
  {
    auto arena = DeviceArena::Allocate(*driver_, 0, kMiB);
    auto other = DeviceArena::Allocate(*driver_, 1, kMiB);
    ASSERT_TRUE(arena.ok() && other.ok());
    const CuAddress address = other->address();
    *arena = std::move(*other);
    EXPECT_EQ(arena->address(), address);
    EXPECT_EQ(arena->device(), 1);
    EXPECT_EQ(counts().reservations, held.reservations + 1);
    EXPECT_EQ(counts().mappings, held.mappings + 1);
  }
  EXPECT_EQ(cuda_double::CountsOf(doubled_), before);
}

TEST_F(DeviceArenaTest, LeavesNothingWhenAnyStepFails) {
  Start();
  const auto before = cuda_double::CountsOf(doubled_);
  for (const char* step : {"cuDeviceGetAttribute", "cuMemGetAllocationGranularity", "cuMemCreate",
                           "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"}) {
    doubled_.fail(step, 1, CuResult::kOperatingSystem);
    const auto arena = DeviceArena::Allocate(*driver_, 0, kMiB);
    EXPECT_VARYING_TEXT(TextOf(arena), "CUDA_ERROR_OPERATING_SYSTEM");
    EXPECT_EQ(cuda_double::CountsOf(doubled_), before) << step;
  }
}

}  // namespace
}  // namespace headrace::transport
