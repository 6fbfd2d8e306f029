// The mapper: maps in slices what is populated, unmaps in slices, and lets everybody have a turn.
#include "service/mapping/mapper.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ipc/sealed_memory.h"
#include "tests/support/expect_text.h"
#include "tests/support/recording.h"

namespace headrace::service {
namespace {

constexpr std::size_t kSize = 64 * ipc::kPageSize;
constexpr std::uint32_t kUid = 1001;
constexpr std::uint32_t kOtherUid = 65534;

ipc::SealedMemory Populated(std::size_t size) {
  ipc::SealedMemory memory = ipc::CreateSealedMemory("headrace-test", size).value();
  const Status populated = ipc::Populate(memory);
  HR_CHECK(populated.ok(), size);
  return memory;
}

std::uint64_t AllocatedBytes(int fd) {
  struct stat state {};
  HR_CHECK(::fstat(fd, &state) == 0, fd);
  return static_cast<std::uint64_t>(state.st_blocks) * 512;
}

class MapperTest : public ::testing::Test {
 protected:
  template <typename Message>
  void Send(Message message) {
    ASSERT_TRUE(mapper_.inbox().Send(std::move(message)));
  }
  void Map(UniqueFd fd, std::size_t size, RequestToken token, std::uint32_t uid = kUid) {
    Send(MapSegment{.memory = std::move(fd),
                    .size = size,
                    .token = token,
                    .session = SessionId{token},
                    .uid = uid});
  }
  // Works until nothing is left; how many turns that took.
  int Work() {
    int turns = 0;
    while (mapper_.DoWork(now_)) ++turns;
    return turns;
  }
  // The turns until the answer with that token has come.
  int TurnsUntil(RequestToken token) {
    for (int turns = 1; turns < 10'000; ++turns) {
      mapper_.DoWork(now_);
      for (const SegmentMapped* mapped : rpc_.Of<SegmentMapped>()) {
        if (mapped->token == token) return turns;
      }
    }
    return -1;
  }
  // Whether the pages at `memory` are mapped in this process.
  static bool IsMapped(const std::byte* memory, std::size_t size) {
    std::vector<unsigned char> pages(size / ipc::kPageSize);
    return ::mincore(const_cast<std::byte*>(memory), size, pages.data()) == 0;
  }

  TimeNs now_ = kSecond;
  std::unique_ptr<ipc::BoardLayout> board_ = std::make_unique<ipc::BoardLayout>();
  support::CountingWakeable wakeable_;
  support::RecordingInbox<RpcMessage> rpc_;
  Mapper mapper_{wakeable_, rpc_, *board_};
};

TEST_F(MapperTest, MapsASegmentWithAllItsPages) {
  ipc::SealedMemory memory = Populated(kSize);
  memory.mapping.data()[5] = std::byte{42};
  Map(std::move(memory.fd), kSize, 17);
  EXPECT_TRUE(rpc_.messages.empty()) << "not before it works";
  EXPECT_GT(Work(), 0);
  const SegmentMapped& mapped = *rpc_.Of<SegmentMapped>().at(0);
  EXPECT_EQ(mapped.token, 17U);
  ASSERT_TRUE(mapped.memory.ok());
  EXPECT_EQ(mapped.memory->data()[5], std::byte{42});
  std::vector<unsigned char> pages(kSize / ipc::kPageSize);
  ASSERT_EQ(::mincore(mapped.memory->data(), kSize, pages.data()), 0);
  for (const unsigned char page : pages) EXPECT_EQ(page & 1, 1);
  EXPECT_FALSE(mapper_.DoWork(now_));
}

TEST_F(MapperTest, KeepsSegmentsApartInTheAddressBitsThatCachesCompare) {
  constexpr std::size_t kLarge = std::size_t{16} << 20;
  constexpr std::uintptr_t kCompared = (std::uintptr_t{1} << 28) - ipc::kPageSize;
  std::vector<std::uintptr_t> places;
  for (RequestToken token = 0; token < 20; ++token) {
    Map(Populated(kLarge).fd, kLarge, token);
    Work();
    const SegmentMapped& mapped = *rpc_.Of<SegmentMapped>().at(token);
    ASSERT_TRUE(mapped.memory.ok());
    places.push_back(reinterpret_cast<std::uintptr_t>(mapped.memory->data()) & kCompared);
  }
  std::sort(places.begin(), places.end());
  EXPECT_EQ(std::adjacent_find(places.begin(), places.end()), places.end());
}

TEST_F(MapperTest, AnswersWithTheCauseWhenASegmentCannotBeMapped) {
  ipc::SealedMemory memory = ipc::CreateSealedMemory("headrace-test", kSize).value();
  Map(std::move(memory.fd), 2 * kSize, 1);
  UniqueFd unsealed(::memfd_create("headrace-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  Map(std::move(unsealed), kSize, 2);
  Work();
  const auto answers = rpc_.Of<SegmentMapped>();
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_EQ(answers[0]->token, 1U);
  EXPECT_VARYING_TEXT(answers[0]->memory.error().text());
  EXPECT_EQ(answers[1]->token, 2U);
  EXPECT_VARYING_TEXT(answers[1]->memory.error().text());
}

TEST_F(MapperTest, ClosesTheDescriptorOfASegment) {
  ipc::SealedMemory memory = Populated(kSize);
  const int fd = memory.fd.get();
  Map(std::move(memory.fd), kSize, 1);
  EXPECT_NE(::fcntl(fd, F_GETFD), -1);
  Work();
  EXPECT_EQ(::fcntl(fd, F_GETFD), -1);
}

TEST_F(MapperTest, UnmapsWhatItIsToldToDiscard) {
  Mapping mapping = ipc::CreateSealedMemory("headrace-test", kSize).value().mapping;
  const std::byte* memory = mapping.data();
  Send(DiscardMemory{std::move(mapping)});
  EXPECT_TRUE(IsMapped(memory, kSize));
  Work();
  EXPECT_FALSE(IsMapped(memory, kSize));
}

TEST_F(MapperTest, DiscardsASessionWithItsChannelAndSegments) {
  ipc::Channel::Created created = ipc::Channel::Create().value();
  auto session = std::make_unique<Session>(
      SessionIdentity{}, ipc::Channel::Open(created.fd.get()).value(), UniqueFd());
  session->AddSegment(SegmentId{0},
                      ipc::CreateSealedMemory("headrace-test", kSize).value().mapping);
  const std::byte* memory = session->FindSegment(SegmentId{0}).data();
  Send(DiscardSession{std::move(session)});
  EXPECT_TRUE(IsMapped(memory, kSize));
  Work();
  EXPECT_FALSE(IsMapped(memory, kSize));
}

// Whoever allocates pays: a memfd with holes would be the service's.
TEST_F(MapperTest, RefusesMemoryThatIsNotPopulatedAndAllocatesNoneOfIt) {
  const ipc::SealedMemory sparse = ipc::CreateSealedMemory("headrace-test", kSize).value();
  Map(Duplicate(sparse.fd.get()).value(), kSize, 1);
  Work();
  const SegmentMapped& refused = *rpc_.Of<SegmentMapped>().at(0);
  ASSERT_FALSE(refused.memory.ok());
  EXPECT_EQ(refused.memory.error().code(), Code::kInvalidArgument);
  EXPECT_VARYING_TEXT(refused.memory.error().text());
  EXPECT_EQ(AllocatedBytes(sparse.fd.get()), 0U);
  // One page of 64 is missing.
  ASSERT_EQ(::fallocate(sparse.fd.get(), 0, 0, kSize - ipc::kPageSize), 0);
  Map(Duplicate(sparse.fd.get()).value(), kSize, 2);
  Work();
  EXPECT_FALSE(rpc_.Of<SegmentMapped>().at(1)->memory.ok());
  EXPECT_EQ(AllocatedBytes(sparse.fd.get()), kSize - ipc::kPageSize);
  ASSERT_EQ(::fallocate(sparse.fd.get(), 0, 0, kSize), 0);
  Map(Duplicate(sparse.fd.get()).value(), kSize, 3);
  Work();
  EXPECT_TRUE(rpc_.Of<SegmentMapped>().at(2)->memory.ok());
}

TEST_F(MapperTest, StopsWhereHolesArePunchedWhileItMaps) {
  constexpr std::size_t kSlices = 4;
  const ipc::SealedMemory memory = Populated(kSlices * kMappingSlice);
  Map(Duplicate(memory.fd.get()).value(), kSlices * kMappingSlice, 1);
  mapper_.DoWork(now_);
  EXPECT_TRUE(rpc_.Of<SegmentMapped>().empty());
  ASSERT_EQ(::fallocate(memory.fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                        kSlices * kMappingSlice),
            0);
  Work();
  EXPECT_FALSE(rpc_.Of<SegmentMapped>().at(0)->memory.ok());
  EXPECT_EQ(AllocatedBytes(memory.fd.get()), 0U);
}

TEST_F(MapperTest, MapsInSlicesAndSaysHowFarItIs) {
  constexpr std::size_t kSlices = 5;
  Map(Populated(kSlices * kMappingSlice).fd, kSlices * kMappingSlice, 1);
  std::vector<std::uint64_t> progress;
  for (std::size_t slice = 0; slice < kSlices; ++slice) {
    EXPECT_TRUE(rpc_.Of<SegmentMapped>().empty()) << slice;
    EXPECT_TRUE(mapper_.DoWork(now_));
    EXPECT_EQ(mapper_.PrepareToSleep(), slice + 1 == kSlices);
    now_ += kProgressPeriod / 2;
  }
  for (const SegmentProgress* each : rpc_.Of<SegmentProgress>()) {
    EXPECT_EQ(each->token, 1U);
    progress.push_back(each->bytes);
  }
  EXPECT_EQ(progress, (std::vector<std::uint64_t>{kMappingSlice, 3 * kMappingSlice}));
  ASSERT_EQ(rpc_.Of<SegmentMapped>().size(), 1U);
  EXPECT_TRUE(rpc_.Of<SegmentMapped>()[0]->memory.ok());
}

TEST_F(MapperTest, FinishesASmallSegmentBesideLargeOnesWithinASliceOfEach) {
  constexpr std::size_t kLarge = 8 * kMappingSlice;
  // One memory, handed over four times, is mapped four times.
  const ipc::SealedMemory large = Populated(kLarge);
  for (RequestToken token = 1; token <= 4; ++token) {
    Map(Duplicate(large.fd.get()).value(), kLarge, token, kOtherUid);
  }
  mapper_.DoWork(now_);
  Map(Populated(kSize).fd, kSize, 5, kUid);
  EXPECT_LE(TurnsUntil(5), 2) << "another uid's";
  Map(Populated(kSize).fd, kSize, 6, kOtherUid);
  EXPECT_LE(TurnsUntil(6), 5) << "of the same uid";
  for (const SegmentMapped* mapped : rpc_.Of<SegmentMapped>()) {
    EXPECT_GT(mapped->token, 4U) << "the large ones are under way";
  }
  Work();
  EXPECT_EQ(rpc_.Of<SegmentMapped>().size(), 6U);
}

TEST_F(MapperTest, UnmapsInSlicesToo) {
  constexpr std::size_t kLarge = 8 * kMappingSlice;
  Mapping mapping = std::move(ipc::CreateSealedMemory("headrace-test", kLarge).value().mapping);
  const std::byte* const memory = mapping.data();
  Send(DiscardMemory{std::move(mapping), kOtherUid});
  mapper_.DoWork(now_);
  EXPECT_TRUE(IsMapped(memory, 7 * kMappingSlice));
  EXPECT_FALSE(IsMapped(memory + 7 * kMappingSlice, kMappingSlice));
  Map(Populated(kSize).fd, kSize, 1);
  EXPECT_LE(TurnsUntil(1), 2);
  Work();
  EXPECT_FALSE(IsMapped(memory, ipc::kPageSize));
}

// Whoever attaches, registers and goes again and again makes nothing pile up.
TEST_F(MapperTest, MapsNoFurtherForASessionThatHasEnded) {
  const ipc::SealedMemory large = Populated(4 * kMappingSlice);
  std::vector<int> fds;
  for (RequestToken token = 1; token <= 3; ++token) {
    fds.push_back(::fcntl(large.fd.get(), F_DUPFD_CLOEXEC, 3));
    Map(UniqueFd(fds.back()), 4 * kMappingSlice, token);
    if (token == 1) mapper_.DoWork(now_);
    Send(CancelMapping{SessionId{token}});
  }
  mapper_.DoWork(now_);
  ASSERT_EQ(rpc_.Of<SegmentMapped>().size(), 3U);
  for (const SegmentMapped* mapped : rpc_.Of<SegmentMapped>()) {
    ASSERT_FALSE(mapped->memory.ok());
    EXPECT_EQ(mapped->memory.error().code(), Code::kCancelled);
  }
  for (const int fd : fds) EXPECT_EQ(::fcntl(fd, F_GETFD), -1);
  EXPECT_LE(Work(), 6) << "what was mapped is unmapped";
  EXPECT_TRUE(mapper_.PrepareToSleep());
}

TEST_F(MapperTest, SleepsOnlyWhenNothingIsLeft) {
  EXPECT_TRUE(mapper_.PrepareToSleep());
  Map(Populated(2 * kMappingSlice).fd, 2 * kMappingSlice, 1);
  EXPECT_EQ(wakeable_.wakes, 1);
  EXPECT_FALSE(mapper_.PrepareToSleep());
  mapper_.DoWork(now_);
  EXPECT_FALSE(mapper_.PrepareToSleep()) << "a slice is left";
  Work();
  EXPECT_TRUE(mapper_.PrepareToSleep());
  EXPECT_EQ(mapper_.NextDeadline(), kNever);
}

}  // namespace
}  // namespace headrace::service
