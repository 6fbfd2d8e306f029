// Segments on GPUs: made, shared, refused, kept and given back.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "tests/support/device_memory.h"
#include "tests/unit/client/gpu_session.h"
#include "tests/unit/transport/memory/segments.h"
#include "transport/memory/device_import.h"

namespace headrace::client {
namespace {

using transport::CuAddress;
using transport::CuResult;
using transport::DeviceImport;

class GpuMemoryTest : public GpuSessionTest {
 protected:
  // Maps what the service was told of, as it would.
  Result<DeviceImport> Import(std::uint32_t segment) {
    const FakeControl::Claim& claim = control_->claims.at(segment);
    return DeviceImport::Open(*driver_, claim.handle, claim.pieces, contexts_);
  }
  static std::byte* At(CuAddress address) {
    return reinterpret_cast<std::byte*>(address);  // NOLINT: the double's memory is the host's
  }
};

TEST_F(GpuMemoryTest, IsZeroedAndTheSameMemoryForTheService) {
  hr_segment* segment = Segment(3 * kMiB, 1);
  EXPECT_EQ(hr_segment_device(segment), 1);
  EXPECT_EQ(hr_segment_descriptor(segment), -1);
  const std::size_t size = hr_segment_size(segment);
  EXPECT_GE(size, 3 * kMiB);
  auto* bytes = static_cast<std::byte*>(hr_segment_address(segment));
  EXPECT_TRUE(std::all_of(bytes, bytes + size, [](std::byte byte) { return byte == std::byte{}; }));
  const auto import = Import(7);
  ASSERT_TRUE(import.ok()) << import.error().text();
  EXPECT_EQ(import->size(), size);
  EXPECT_EQ(import->device(), 1);
  bytes[size - 1] = std::byte{9};
  EXPECT_EQ(At(import->address())[size - 1], std::byte{9});
  control_->claims.at(7).pieces.clear();
}

TEST_F(GpuMemoryTest, OpensNoDriverForHostMemory) {
  handle_.session->UseCudaLibrary("/nonexistent/libcuda.so.1");
  hr_segment* segment = nullptr;
  EXPECT_EQ(hr_segment_create(&handle_, 4096, &segment, &error_), HR_OK) << error_.text;
  EXPECT_EQ(hr_segment_device(segment), -1);
  EXPECT_EQ(hr_segment_keep(segment), nullptr);
  hr_segment* other = nullptr;
  EXPECT_EQ(hr_segment_create_on_device(&handle_, 4096, 0, &other, &error_), HR_NOT_FOUND);
  EXPECT_TRUE(Says("/nonexistent/libcuda.so.1") && Says("install NVIDIA's driver")) << error_.text;
  EXPECT_EQ(other, nullptr);
}

TEST_F(GpuMemoryTest, GivesNoContextToOtherGpus) {
  stream_.reset();
  contexts_.clear();
  Segment(kMiB, 1);
  EXPECT_EQ(counts().context_uses, 2U);  // the memory's and the session's, of GPU 1
}

TEST_F(GpuMemoryTest, SharesPartOfAnAllocationByItsHandle) {
  const auto memory = transport::AllocateDeviceMemory(contexts_[1], 8 * kMiB);
  ASSERT_TRUE(memory.ok());
  const CuAddress address = memory->get().thing + 4096;
  hr_segment* segment = nullptr;
  ASSERT_EQ(hr_segment_share_device(&handle_, At(address), kMiB, &segment, &error_), HR_OK)
      << error_.text;
  EXPECT_EQ(hr_segment_address(segment), At(address));
  EXPECT_EQ(hr_segment_size(segment), kMiB);
  EXPECT_EQ(hr_segment_device(segment), 1);
  EXPECT_EQ(hr_segment_keep(segment), nullptr);
  const DeviceHandle& handle = control_->claims.at(7).handle;
  EXPECT_EQ(handle.kind, DeviceHandleKind::kLegacyIpc);
  EXPECT_EQ(handle.offset, 4096U);
  EXPECT_EQ(handle.size, kMiB);
  EXPECT_EQ(hr_segment_release(&handle_, segment, &error_), HR_OK);
  EXPECT_TRUE(control_->claims.empty());
}

TEST_F(GpuMemoryTest, TellsWhichAllocationAnAddressLiesIn) {
  hr_allocation first{};
  {
    const auto memory = transport::AllocateDeviceMemory(contexts_[1], 8 * kMiB);
    ASSERT_TRUE(memory.ok());
    const CuAddress base = memory->get().thing;
    ASSERT_EQ(hr_device_allocation(&handle_, At(base + 4096), &first, &error_), HR_OK)
        << error_.text;
    EXPECT_EQ(first.base, At(base));
    EXPECT_EQ(first.size, 8 * kMiB);
    EXPECT_EQ(first.device, 1);
    EXPECT_NE(first.number, 0U);
  }
  EXPECT_EQ(hr_device_allocation(&handle_, first.base, &first, &error_), HR_INVALID_ARGUMENT);
  const auto again = transport::AllocateDeviceMemory(contexts_[1], 8 * kMiB);
  hr_allocation second{};
  ASSERT_EQ(hr_device_allocation(&handle_, At(again->get().thing), &second, &error_), HR_OK);
  EXPECT_NE(second.number, first.number);
  const auto pieces =
      transport::MakeSegment(*driver_, 0, 4, 2 * kMiB, transport::CuHandleType::kPosixFd);
  ASSERT_EQ(hr_device_allocation(&handle_, At(pieces.address() + 5 * kMiB), &second, &error_),
            HR_OK);
  EXPECT_EQ(second.base, At(pieces.address() + 4 * kMiB));
  EXPECT_EQ(second.size, 2 * kMiB);
  std::vector<std::byte> host(64);
  EXPECT_EQ(hr_device_allocation(&handle_, host.data(), &second, &error_), HR_INVALID_ARGUMENT);
}

TEST_F(GpuMemoryTest, SharesAGrowingSegmentByADescriptorForEachPiece) {
  const auto pieces =
      transport::MakeSegment(*driver_, 0, 4, 2 * kMiB, transport::CuHandleType::kPosixFd);
  hr_segment* segment = nullptr;
  ASSERT_EQ(
      hr_segment_share_device(&handle_, At(pieces.address() + kMiB), 4 * kMiB, &segment, &error_),
      HR_OK)
      << error_.text;
  EXPECT_EQ(control_->claims.at(7).pieces.size(), 3U);
  const auto import = Import(7);
  ASSERT_TRUE(import.ok()) << import.error().text();
  At(pieces.address() + kMiB)[4 * kMiB - 1] = std::byte{5};
  EXPECT_EQ(At(import->address())[4 * kMiB - 1], std::byte{5});
  control_->claims.at(7).pieces.clear();
}

TEST_F(GpuMemoryTest, RefusesWhatCannotBeSharedWithReasonAndRemedy) {
  hr_segment* segment = nullptr;
  std::vector<float> host(1024);
  EXPECT_EQ(hr_segment_share_device(&handle_, host.data(), 4096, &segment, &error_),
            HR_INVALID_ARGUMENT);
  EXPECT_TRUE(Says("cannot be shared: CUDA does not know it") &&
              Says("let headrace allocate the gradients"))
      << error_.text;
  const auto closed =
      transport::MakeSegment(*driver_, 0, 1, 2 * kMiB, transport::CuHandleType::kNone);
  EXPECT_EQ(hr_segment_share_device(&handle_, At(closed.address()), 4096, &segment, &error_),
            HR_INVALID_ARGUMENT);
  EXPECT_TRUE(Says("without leave to export it")) << error_.text;
  EXPECT_EQ(segment, nullptr);
  EXPECT_TRUE(control_->claims.empty());
}

TEST_F(GpuMemoryTest, NamesAGpuThatIsNotThereAndASizeThatCannotBe) {
  hr_segment* segment = nullptr;
  EXPECT_EQ(hr_segment_create_on_device(&handle_, 4096, 2, &segment, &error_), HR_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.text, "GPU 2: this process sees 2, numbered from 0");
  EXPECT_EQ(hr_segment_create_on_device(&handle_, 4096, -1, &segment, &error_),
            HR_INVALID_ARGUMENT);
  EXPECT_EQ(hr_segment_create_on_device(&handle_, 0, 0, &segment, &error_), HR_INVALID_ARGUMENT);
  EXPECT_TRUE(Says("segment of 0 bytes")) << error_.text;
}

TEST_F(GpuMemoryTest, GivesEverythingBackWhenSomeStepFails) {
  const auto before = cuda_double::CountsOf(doubled_);
  hr_segment* segment = nullptr;
  for (const char* step : {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemsetD8Async",
                           "cuStreamSynchronize", "cuMemExportToShareableHandle"}) {
    doubled_.fail(step, 1, CuResult::kOutOfMemory);
    EXPECT_EQ(hr_segment_create_on_device(&handle_, kMiB, 0, &segment, &error_), HR_EXHAUSTED)
        << step;
    EXPECT_TRUE(Says("CUDA_ERROR_OUT_OF_MEMORY")) << error_.text;
  }
  control_->refusal = Error(Code::kUnavailable, "the service has no GPU");
  EXPECT_EQ(hr_segment_create_on_device(&handle_, kMiB, 0, &segment, &error_), HR_UNAVAILABLE);
  EXPECT_STREQ(error_.text, "the service has no GPU");
  auto after = cuda_double::CountsOf(doubled_);
  EXPECT_EQ(after[0], before[0] + 1);  // the session's use of the context, for the next attempt
  after[0] = before[0];
  EXPECT_EQ(after, before);
}

TEST_F(GpuMemoryTest, StaysForThoseWhoKeepItWhenTheSessionIsGone) {
  hr_segment* segment = Segment(kMiB);
  auto* bytes = static_cast<std::byte*>(hr_segment_address(segment));
  hr_memory* memory = hr_segment_keep(segment);
  ASSERT_NE(memory, nullptr);
  handle_.session.reset();
  bytes[5] = std::byte{1};
  const pid_t child = ::fork();
  if (child == 0) {
    hr_memory_free(memory);  // must do nothing here
    ::_exit(bytes[5] == std::byte{1} ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(bytes[5], std::byte{1});
  EXPECT_EQ(counts().mappings, 1U);
  hr_memory_free(memory);
  EXPECT_EQ(counts().mappings, 0U);
  hr_memory_free(nullptr);
}

TEST_F(GpuMemoryTest, GoesOnlyWhenTheGpuIsDoneWithIt) {
  hr_segment* segment = Segment(kMiB);
  const auto address = reinterpret_cast<CuAddress>(hr_segment_address(segment));
  StreamBlocker blocker;
  blocker.Close(contexts_[0], stream());
  {
    const auto current = In();
    ASSERT_EQ(call().memset_async(address, 1, kMiB, stream()), CuResult::kSuccess);
  }
  std::atomic<bool> released = false;
  std::thread releaser([this, segment, &released] {
    EXPECT_EQ(hr_segment_release(&handle_, segment, &error_), HR_OK);
    released = true;
  });
  EXPECT_FALSE(IsIdle());
  EXPECT_FALSE(released);
  blocker.Open();
  releaser.join();
  Synchronize();
  EXPECT_EQ(counts().mappings, 0U);
}

}  // namespace
}  // namespace headrace::client
