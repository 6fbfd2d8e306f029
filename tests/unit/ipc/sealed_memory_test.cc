// What the service accepts as shared memory: every way to be wrong is refused by name, unmapped.
#include "ipc/sealed_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "tests/support/expect_text.h"

namespace headrace::ipc {
namespace {

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

constexpr std::size_t kSize = 4 * kPageSize;
constexpr int kGoodSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

UniqueFd Memfd(std::size_t size, int seals, unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING) {
  UniqueFd fd(::memfd_create("test", flags));
  EXPECT_TRUE(fd) << std::strerror(errno);
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(size)), 0) << std::strerror(errno);
  if (seals != 0) {
    EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  }
  return fd;
}

// The refusal of `fd`, announced with `size`: code and text.
void ExpectRefused(int fd, std::size_t size, const std::string& cause) {
  Result<Mapping> mapping = MapSealedMemory(fd, size);
  ASSERT_FALSE(mapping.ok()) << "accepted, although " << cause;
  EXPECT_EQ(mapping.error().code(), Code::kInvalidArgument);
  EXPECT_NE(mapping.error().text().find(cause), std::string::npos) << mapping.error().text();
}

TEST(SealedMemory, IsSharedByBothEnds) {
  Result<SealedMemory> memory = CreateSealedMemory("test", kSize);
  ASSERT_TRUE(memory.ok()) << memory.error().text();
  Result<Mapping> other = MapSealedMemory(memory->fd.get(), kSize);
  ASSERT_TRUE(other.ok()) << other.error().text();
  memory->mapping.data()[kSize - 1] = std::byte{42};
  EXPECT_EQ(other->data()[kSize - 1], std::byte{42});
}

TEST(SealedMemory, IsPopulatedWhenEveryPageIsAllocated) {
  const UniqueFd sparse = Memfd(kSize, kGoodSeals);
  const Status refused = CheckPopulated(sparse.get(), kSize);
  ASSERT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_VARYING_TEXT(refused.error().text(), "16384");
  ASSERT_EQ(::fallocate(sparse.get(), 0, 0, kSize - kPageSize), 0);
  EXPECT_VARYING_TEXT(CheckPopulated(sparse.get(), kSize).error().text(), "4096");
  ASSERT_EQ(::fallocate(sparse.get(), 0, 0, kSize), 0);
  EXPECT_TRUE(CheckPopulated(sparse.get(), kSize).ok());

  SealedMemory memory = CreateSealedMemory("test", kSize).value();
  EXPECT_FALSE(CheckPopulated(memory.fd.get(), kSize).ok());
  EXPECT_TRUE(Populate(memory).ok());
  EXPECT_TRUE(CheckPopulated(memory.fd.get(), kSize).ok());
}

TEST(SealedMemory, CannotBeCutGrownOrUnsealedByItsMaker) {
  Result<SealedMemory> memory = CreateSealedMemory("test", kSize);
  ASSERT_TRUE(memory.ok());
  EXPECT_NE(::ftruncate(memory->fd.get(), kPageSize), 0);
  EXPECT_NE(::ftruncate(memory->fd.get(), 2 * kSize), 0);
  EXPECT_NE(::fcntl(memory->fd.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
}

TEST(SealedMemory, SurvivesAHolePunchedIntoItByItsMaker) {
  Result<SealedMemory> memory = CreateSealedMemory("test", kSize);
  ASSERT_TRUE(memory.ok());
  Result<Mapping> other = MapSealedMemory(memory->fd.get(), kSize);
  ASSERT_TRUE(other.ok());
  other->data()[0] = std::byte{1};
  ASSERT_EQ(::fallocate(memory->fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kSize), 0);
  EXPECT_EQ(other->data()[0], std::byte{0}) << "reads as zeros, and is no SIGBUS";
}

TEST(SealedMemory, RefusesAnUnsealedMemfd) {
  UniqueFd fd = Memfd(kSize, 0);
  ExpectRefused(fd.get(), kSize, "some are missing");
}

TEST(SealedMemory, RefusesAMemfdMadeWithoutSealing) {
  UniqueFd fd = Memfd(kSize, 0, MFD_CLOEXEC);
  ExpectRefused(fd.get(), kSize, "some are missing");
}

TEST(SealedMemory, RefusesEverySetOfSealsThatLacksOne) {
  for (const int missing : {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL}) {
    UniqueFd fd = Memfd(kSize, kGoodSeals & ~missing);
    ExpectRefused(fd.get(), kSize, "some are missing");
  }
}

TEST(SealedMemory, RefusesMemorySealedAgainstWriting) {
  for (const int seal : {F_SEAL_WRITE, F_SEAL_FUTURE_WRITE}) {
    UniqueFd fd = Memfd(kSize, kGoodSeals | seal);
    ExpectRefused(fd.get(), kSize, "sealed against writing");
  }
}

TEST(SealedMemory, RefusesASizeOtherThanAnnounced) {
  UniqueFd fd = Memfd(kSize, kGoodSeals);
  ExpectRefused(fd.get(), kSize + kPageSize, "holds 16384 bytes, 20480 were announced");
  ExpectRefused(fd.get(), kSize - kPageSize, "holds 16384 bytes, 12288 were announced");
}

TEST(SealedMemory, RefusesAMemfdTruncatedBeforeSealing) {
  UniqueFd fd = Memfd(kSize, 0);
  ASSERT_EQ(::ftruncate(fd.get(), 0), 0);
  ASSERT_EQ(::fcntl(fd.get(), F_ADD_SEALS, kGoodSeals), 0);
  ExpectRefused(fd.get(), kSize, "holds 0 bytes");
}

TEST(SealedMemory, RefusesNonsenseSizesAtBothEnds) {
  UniqueFd fd = Memfd(kSize, kGoodSeals);
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, kPageSize - 1, kPageSize + 1,
                                 kSegmentSizeMax + kPageSize, ~std::size_t{0}}) {
    ExpectRefused(fd.get(), size, "must be a positive multiple");
    Result<SealedMemory> made = CreateSealedMemory("test", size);
    ASSERT_FALSE(made.ok()) << size;
    EXPECT_EQ(made.error().code(), Code::kInvalidArgument);
  }
}

TEST(SealedMemory, RefusesWhatIsNotAMemfd) {
  int pipe_ends[2];
  ASSERT_EQ(::pipe2(pipe_ends, O_CLOEXEC), 0);
  UniqueFd read_end(pipe_ends[0]);
  UniqueFd write_end(pipe_ends[1]);
  UniqueFd event(::eventfd(0, EFD_CLOEXEC));
  UniqueFd file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  UniqueFd folder(::open("/", O_RDONLY | O_CLOEXEC | O_DIRECTORY));
  UniqueFd device(::open("/dev/zero", O_RDWR | O_CLOEXEC));
  for (const int fd : {read_end.get(), event.get(), file.get(), device.get(), -1}) {
    ExpectRefused(fd, kSize, "not a memfd");
  }
  EXPECT_FALSE(MapSealedMemory(folder.get(), kSize).ok());
}

TEST(SealedMemory, RefusesADescriptorThatMayOnlyRead) {
  UniqueFd fd = Memfd(kSize, kGoodSeals);
  const std::string path = "/proc/self/fd/" + std::to_string(fd.get());
  UniqueFd read_only(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(read_only);
  Result<Mapping> mapping = MapSealedMemory(read_only.get(), kSize);
  ASSERT_FALSE(mapping.ok());
  EXPECT_EQ(mapping.error().code(), Code::kPermissionDenied) << mapping.error().text();
}

TEST(SealedMemory, RefusesHugePagesWhoseHolesWouldBeASigbus) {
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  UniqueFd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (!fd) GTEST_SKIP() << "no huge pages in this kernel: " << std::strerror(errno);
  ASSERT_EQ(::ftruncate(fd.get(), kHugePage), 0);
  ASSERT_EQ(::fcntl(fd.get(), F_ADD_SEALS, kGoodSeals), 0);
  ExpectRefused(fd.get(), kHugePage, "huge pages");
}

TEST(SealedMemory, CanBeMappedAgainForALongerLife) {
  Result<SealedMemory> memory = CreateSealedMemory("test", 3 * kPageSize);
  ASSERT_TRUE(memory.ok());
  Result<Mapping> again = Mapping::Again({memory->mapping.data() + kPageSize, kPageSize});
  ASSERT_TRUE(again.ok()) << again.error().text();
  EXPECT_NE(again->data(), memory->mapping.data() + kPageSize);
  memory->mapping.data()[kPageSize + 7] = std::byte{3};
  memory->mapping = Mapping();
  EXPECT_EQ(again->data()[7], std::byte{3});
  EXPECT_FALSE(Mapping::Again({static_cast<std::byte*>(nullptr), kPageSize}).ok());
}

TEST(SealedMemory, StaysMappedWhenItIsAbandoned) {
  Result<SealedMemory> memory = CreateSealedMemory("test", kPageSize);
  ASSERT_TRUE(memory.ok());
  std::byte* bytes = memory->mapping.data();
  memory->mapping.Abandon();
  memory->mapping = Mapping();
  bytes[0] = std::byte{4};
  EXPECT_EQ(bytes[0], std::byte{4});
  EXPECT_EQ(::munmap(bytes, kPageSize), 0);
}

}  // namespace
}  // namespace headrace::ipc
