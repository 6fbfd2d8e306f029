// Memory that somebody else allocated: shared where the driver can, refused with a remedy
// elsewhere.
#include "transport/memory/device_grant.h"
#include "tests/support/expect_text.h"

#include "tests/support/device_memory.h"
#include "tests/unit/transport/memory/double_test.h"
#include "tests/unit/transport/memory/segments.h"
#include "transport/memory/device_import.h"

namespace headrace::transport {
namespace {

class DeviceGrantTest : public DoubleTest {};

TEST_F(DeviceGrantTest, NamesTheAllocationAndTheOffsetInIt) {
  Start();
  const auto memory = AllocateDeviceMemory(contexts_[1], kMiB);
  ASSERT_TRUE(memory.ok());
  const auto grant = GrantExisting(*driver_, memory->get().thing + 4096, 8192);
  ASSERT_TRUE(grant.ok()) << grant.error().text();
  EXPECT_EQ(grant->handle.kind, DeviceHandleKind::kLegacyIpc);
  EXPECT_EQ(grant->handle.offset, 4096U);
  EXPECT_EQ(grant->handle.size, 8192U);
  EXPECT_EQ(grant->handle.piece_size, 0U);
  EXPECT_TRUE(grant->fds.empty());
}

TEST_F(DeviceGrantTest, MakesNoContextOnAGpuThatIsNotUsed) {
  Start();
  const auto memory = AllocateDeviceMemory(contexts_[1], kMiB);
  ASSERT_TRUE(memory.ok());
  contexts_.erase(contexts_.begin());
  doubled_.fail("cuDevicePrimaryCtxRetain", 3, CuResult::kOutOfMemory);
  EXPECT_EQ(TextOf(GrantExisting(*driver_, memory->get().thing, kMiB)), "ok")
      << "two retains of GPU 1 are all it takes";
  EXPECT_EQ(counts().context_uses, 1U);
  EXPECT_FALSE(RetainPrimaryContext(*driver_, 1).ok()) << "the third";
}

TEST_F(DeviceGrantTest, RefusesARangeOverTheEndOfItsAllocation) {
  Start();
  const auto memory = AllocateDeviceMemory(contexts_[0], kMiB);
  ASSERT_TRUE(memory.ok());
  const auto grant = GrantExisting(*driver_, memory->get().thing + 4096, kMiB);
  EXPECT_VARYING_TEXT(TextOf(grant), "1048576 bytes", "1048576");
}

TEST_F(DeviceGrantTest, ExportsAPieceOfASegmentForEachMappingThatIsTouched) {
  Start();
  const auto segment = MakeSegment(*driver_, 0, 4, 2 * kMiB, CuHandleType::kPosixFd);
  const auto grant = GrantExisting(*driver_, segment.address() + 2 * kMiB + 512, 3 * kMiB);
  ASSERT_TRUE(grant.ok()) << grant.error().text();
  EXPECT_EQ(grant->handle.kind, DeviceHandleKind::kPosixFds);
  EXPECT_EQ(grant->handle.piece_size, 2 * kMiB);
  EXPECT_EQ(grant->handle.offset, 512U);
  EXPECT_EQ(grant->fds.size(), 2U);
  // And what comes in is what was there.
  {
    const CurrentContext current(*driver_, contexts_[0].get().context);
    ASSERT_EQ(call().memset_async(segment.address() + 4 * kMiB, 0x3c, 2 * kMiB, nullptr),
              CuResult::kSuccess);
    const auto import = DeviceImport::Open(*driver_, grant->handle, grant->fds, contexts_);
    ASSERT_TRUE(import.ok()) << import.error().text();
    unsigned char bytes[2] = {};
    ASSERT_EQ(call().memcpy_to_host(bytes, import->address() + 2 * kMiB - 513, 2),
              CuResult::kSuccess);
    EXPECT_EQ(bytes[0], 0);
    EXPECT_EQ(bytes[1], 0x3c);
  }
}

TEST_F(DeviceGrantTest, RefusesASegmentWithAGap) {
  Start();
  auto segment = MakeSegment(*driver_, 0, 3, 2 * kMiB, CuHandleType::kPosixFd);
  segment.mappings[1].reset();
  EXPECT_VARYING_TEXT(TextOf(GrantExisting(*driver_, segment.address(), 5 * kMiB)));
  EXPECT_TRUE(GrantExisting(*driver_, segment.address(), 2 * kMiB).ok());
}

TEST_F(DeviceGrantTest, RefusesMemoryThatWasMadeWithoutLeaveToExportIt) {
  Start();
  const auto segment = MakeSegment(*driver_, 0, 1, 2 * kMiB, CuHandleType::kNone);
  const auto grant = GrantExisting(*driver_, segment.address(), kMiB);
  EXPECT_EQ(grant.error().code(), Code::kInvalidArgument);
  EXPECT_VARYING_TEXT(TextOf(grant));
}

TEST_F(DeviceGrantTest, RefusesHostMemory) {
  Start();
  auto pages = HostPages(4096);
  const auto address = reinterpret_cast<CuAddress>(pages.data());
  EXPECT_VARYING_TEXT(TextOf(GrantExisting(*driver_, address, 8)));
  const auto pinned = RegisterHostMemory(contexts_[0], pages.data(), pages.size());
  ASSERT_TRUE(pinned.ok());
  EXPECT_VARYING_TEXT(TextOf(GrantExisting(*driver_, address, 8)));
  EXPECT_EQ(TextOf(GrantExisting(*driver_, address, 0)), "cannot share 0 bytes");
}

}  // namespace
}  // namespace headrace::transport
