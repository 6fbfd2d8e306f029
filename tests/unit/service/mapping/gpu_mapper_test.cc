// The mapper as it maps GPUs' memory: what the board says of it, and what the driver refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "ipc/sealed_memory.h"
#include "service/mapping/mapper.h"
#include "tests/support/cuda_double/doubled_driver.h"
#include "tests/support/recording.h"
#include "transport/memory/device_arena.h"
#include "transport/memory/gpus.h"

namespace headrace::service {
namespace {

constexpr std::uint64_t kGpuSize = std::uint64_t{4} << 20;

class GpuMapper : public ::testing::Test {
 protected:
  ~GpuMapper() override {
    arenas_.clear();
    rpc_.messages.clear();
    mapper_.reset();
    gpus_.reset();
    const auto counts = cuda_double::CountsOf(doubled_);
    EXPECT_EQ(counts, std::vector<std::uint64_t>(counts.size(), 0)) << "something was left behind";
  }

  void Start() {
    HR_CHECK(doubled_.restart() == 1, "a test before this one left something behind");
    gpus_ = transport::Gpus::Open(cuda_double::LibraryPath()).value();
    mapper_ = std::make_unique<Mapper>(wakeable_, rpc_, *board_, gpus_.get());
  }
  // Another process's memory, and the claim of it.
  MapDeviceSegment Granted(int device) {
    arenas_.push_back(transport::DeviceArena::Allocate(gpus_->driver(), device, kGpuSize).value());
    transport::DeviceGrant grant = arenas_.back().Grant().value();
    return {.handle = grant.handle, .fds = std::move(grant.fds), .token = 1};
  }
  // Maps it; the answer is taken out of the inbox.
  Result<SegmentMemory> Map(MapDeviceSegment message) {
    EXPECT_TRUE(mapper_->inbox().Send(std::move(message)));
    Work();
    std::optional<SegmentMapped> mapped = rpc_.Take<SegmentMapped>();
    HR_CHECK(mapped.has_value());
    return std::move(mapped->memory);
  }
  void Work(TimeNs now = 0) {
    while (mapper_->DoWork(now)) {
    }
  }
  void Discard(SegmentMemory memory) {
    EXPECT_TRUE(mapper_->inbox().Send(DiscardMemory{std::move(memory)}));
    Work();
  }
  ipc::GpuRow Row(std::size_t gpu) const { return ipc::ReadRow(board_->gpus[gpu]).value(); }

  const cuda_double::Doubled doubled_ = cuda_double::LoadDouble();
  std::unique_ptr<ipc::BoardLayout> board_ = std::make_unique<ipc::BoardLayout>();
  support::CountingWakeable wakeable_;
  support::RecordingInbox<RpcMessage> rpc_;
  std::unique_ptr<transport::Gpus> gpus_;
  std::vector<transport::DeviceArena> arenas_;
  std::unique_ptr<Mapper> mapper_;
};

TEST_F(GpuMapper, ShowsWhatThereIsAndWhatOfItIsHeld) {
  Start();
  EXPECT_EQ(Row(0).in_use, 1U);
  EXPECT_EQ(Row(1).in_use, 1U);
  EXPECT_EQ(Row(2).in_use, 0U);
  EXPECT_EQ(Row(1).memory_size, gpus_->devices()[1].memory_size);
  EXPECT_EQ(ipc::GetText(Row(1).name), gpus_->devices()[1].name);
  EXPECT_EQ(Row(1).uuid[15], gpus_->devices()[1].uuid[15]);
  Result<SegmentMemory> first = Map(Granted(1));
  Result<SegmentMemory> second = Map(Granted(1));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->device(), 1);
  EXPECT_EQ(first->size(), kGpuSize);
  EXPECT_EQ(Row(1).held_bytes, 2 * kGpuSize);
  EXPECT_EQ(Row(1).segments, 2U);
  EXPECT_EQ(Row(0).held_bytes, 0U);
  Discard(std::move(*first));
  EXPECT_EQ(Row(1).held_bytes, kGpuSize);
  Discard(std::move(*second));
  EXPECT_EQ(Row(1).held_bytes, 0U);
  EXPECT_EQ(Row(1).segments, 0U);
}

TEST_F(GpuMapper, GivesMemoryOfADeadClientBackWithItsSession) {
  Start();
  auto session = std::make_unique<Session>(
      SessionIdentity{.id = SessionId{1}, .job = JobId{1}, .job_name = "job"},
      ipc::Channel::Open(ipc::Channel::Create().value().fd.get()).value(), UniqueFd());
  Result<SegmentMemory> memory = Map(Granted(0));
  ASSERT_TRUE(memory.ok());
  session->AddSegment(SegmentId{0}, std::move(*memory));
  arenas_.clear();  // the client is gone, and the memory is held by the service alone
  EXPECT_TRUE(mapper_->inbox().Send(DiscardSession{std::move(session)}));
  Work();
  EXPECT_EQ(Row(0).held_bytes, 0U);
  CudaDoubleCounts counts{};
  doubled_.counts(&counts);
  EXPECT_EQ(counts.mappings + counts.reservations + counts.memory_handles, 0U);
}

TEST_F(GpuMapper, PinsResidualsAndUnpinsThemBeforeTheyAreUnmapped) {
  Start();
  support::RecordingInbox<DispatchMessage> dispatch;
  mapper_->ConnectDispatch(dispatch);
  auto session = std::make_unique<Session>(
      SessionIdentity{.id = SessionId{1}, .job = JobId{1}, .job_name = "job"},
      ipc::Channel::Open(ipc::Channel::Create().value().fd.get()).value(), UniqueFd());
  Mapping memory = Mapping::Anonymous(kGpuSize).value();
  const std::span<std::byte> bytes(memory.data(), kGpuSize);
  session->AddSegment(SegmentId{0}, std::move(memory));
  EXPECT_TRUE(mapper_->inbox().Send(PinResiduals{JobId{1}, 0, bytes}));
  Work();
  std::optional<ResidualsPinned> answer = dispatch.Take<ResidualsPinned>();
  ASSERT_TRUE(answer && answer->pinned.ok());
  std::memset(bytes.data(), 1, bytes.size());
  EXPECT_EQ(*answer->pinned->on_gpus(), std::byte{1});
  CudaDoubleCounts counts{};
  doubled_.counts(&counts);
  EXPECT_EQ(counts.host_registrations, 1U);
  // Unpinning asks the driver, and unmapping waits for that.
  ASSERT_TRUE(gpus_->memory_gate().TryBeginCollective());
  EXPECT_TRUE(
      mapper_->inbox().Send(DiscardSession{std::move(session), std::move(*answer->pinned)}));
  Work();
  doubled_.counts(&counts);
  EXPECT_EQ(counts.host_registrations, 1U);
  EXPECT_EQ(bytes.front(), std::byte{1}) << "it is still mapped";
  gpus_->memory_gate().EndCollective();
  Work(transport::MemoryGate::kLookEvery);
  doubled_.counts(&counts);
  EXPECT_EQ(counts.host_registrations, 0U);
}

// What a job needs pinned in slices, and what others register meanwhile.
class SlicedPinning : public GpuMapper {
 protected:
  static constexpr std::size_t kSlices = 4;

  void SetUp() override {
    Start();
    mapper_->ConnectDispatch(dispatch_);
  }
  std::span<std::byte> Memory() {
    if (!memory_) memory_ = Mapping::Anonymous(kSlices * kMappingSlice).value();
    return {memory_.data(), memory_.size()};
  }
  std::uint64_t Registrations() const {
    CudaDoubleCounts counts{};
    doubled_.counts(&counts);
    return counts.host_registrations;
  }
  void RegisterForAnother() {
    ipc::SealedMemory memory = ipc::CreateSealedMemory("headrace-test", kGpuSize).value();
    std::memset(memory.mapping.data(), 1, kGpuSize);
    EXPECT_TRUE(mapper_->inbox().Send(
        MapSegment{.memory = std::move(memory.fd), .size = kGpuSize, .token = 2, .uid = 1001}));
  }
  // One slice each.
  void Slices(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) mapper_->DoWork(0);
  }

  Mapping memory_;
  support::RecordingInbox<DispatchMessage> dispatch_;
};

TEST_F(SlicedPinning, OfResidualsLetsRegistrationsOfOthersPass) {
  EXPECT_TRUE(mapper_->inbox().Send(PinResiduals{JobId{1}, 1000, Memory()}));
  Slices(1);
  EXPECT_EQ(Registrations(), 1U);
  RegisterForAnother();
  Slices(2);
  EXPECT_TRUE(rpc_.Take<SegmentMapped>().has_value());
  EXPECT_EQ(Registrations(), 2U);
  EXPECT_FALSE(dispatch_.Take<ResidualsPinned>().has_value());
  Work();
  std::optional<ResidualsPinned> answer = dispatch_.Take<ResidualsPinned>();
  ASSERT_TRUE(answer && answer->pinned.ok());
  EXPECT_EQ(Registrations(), kSlices);
  EXPECT_EQ(answer->pinned->size(), Memory().size());
  const auto address = reinterpret_cast<transport::CuAddress>(answer->pinned->on_gpus());
  EXPECT_NE(doubled_.may_touch(1, address, Memory().size(), 1), 0) << "in one piece";
  EXPECT_TRUE(mapper_->inbox().Send(
      DiscardResiduals{std::move(memory_), std::move(*answer->pinned), 1000}));
  Slices(1);
  EXPECT_EQ(Registrations(), kSlices - 1);
  RegisterForAnother();
  Slices(2);
  EXPECT_TRUE(rpc_.Take<SegmentMapped>().has_value());
  EXPECT_GT(Registrations(), 0U);
  Work();
  EXPECT_EQ(Registrations(), 0U);
}

TEST_F(SlicedPinning, OfResidualsEndsWithItsJobAndLeavesNothingPinned) {
  EXPECT_TRUE(mapper_->inbox().Send(PinResiduals{JobId{1}, 1000, Memory()}));
  Slices(2);
  EXPECT_TRUE(mapper_->inbox().Send(CancelPinning{JobId{2}}));
  Slices(1);
  EXPECT_EQ(Registrations(), 3U) << "of another job";
  EXPECT_TRUE(mapper_->inbox().Send(CancelPinning{JobId{1}}));
  Slices(1);
  EXPECT_EQ(Registrations(), 2U);
  EXPECT_FALSE(dispatch_.Take<ResidualsPinned>().has_value()) << "nobody may unmap it yet";
  Work();
  const std::optional<ResidualsPinned> answer = dispatch_.Take<ResidualsPinned>();
  ASSERT_TRUE(answer && !answer->pinned.ok());
  EXPECT_EQ(answer->pinned.error().code(), Code::kCancelled);
  EXPECT_EQ(Registrations(), 0U);
}

TEST_F(SlicedPinning, OfResidualsThatTheDriverStopsLeavesNothingPinned) {
  doubled_.fail("cuMemHostRegister", 3, transport::CuResult::kOutOfMemory);
  EXPECT_TRUE(mapper_->inbox().Send(PinResiduals{JobId{1}, 1000, Memory()}));
  Slices(3);
  EXPECT_EQ(Registrations(), 2U);
  Work();
  const std::optional<ResidualsPinned> answer = dispatch_.Take<ResidualsPinned>();
  ASSERT_TRUE(answer && !answer->pinned.ok());
  EXPECT_EQ(answer->pinned.error().code(), Code::kExhausted);
  EXPECT_EQ(Registrations(), 0U);
}

TEST_F(SlicedPinning, OfScratchEndsWithItsJobAndLeavesNothingPinned) {
  const std::uint64_t place = kMappingSlice;
  EXPECT_TRUE(mapper_->inbox().Send(
      MakeScratch{.job = JobId{1}, .uid = 1000, .place_bytes = place, .places_count = kSlices}));
  Slices(2);
  EXPECT_TRUE(mapper_->inbox().Send(CancelScratch{JobId{2}}));
  Slices(1);
  EXPECT_EQ(Registrations(), 3U) << "of another job";
  EXPECT_TRUE(mapper_->inbox().Send(CancelScratch{JobId{1}}));
  Work();
  EXPECT_EQ(Registrations(), 0U);
  EXPECT_FALSE(dispatch_.Take<ScratchMade>().has_value()) << "the job is gone";
}

TEST_F(SlicedPinning, OfStagingLetsRegistrationsOfOthersPassUntilItIsGivenBack) {
  EXPECT_TRUE(mapper_->inbox().Send(PinStaging{3, JobId{1}, 1000, Memory()}));
  Slices(1);
  RegisterForAnother();
  Slices(2);
  EXPECT_TRUE(rpc_.Take<SegmentMapped>().has_value());
  EXPECT_FALSE(dispatch_.Take<StagingPinned>().has_value());
  Work();
  std::optional<StagingPinned> answer = dispatch_.Take<StagingPinned>();
  ASSERT_TRUE(answer && answer->on_gpus.ok());
  EXPECT_EQ(answer->lane, 3);
  EXPECT_EQ(answer->group, 1U);
  EXPECT_EQ(*answer->on_gpus, Memory().data());
  EXPECT_EQ(Registrations(), kSlices);
  EXPECT_TRUE(mapper_->inbox().Send(UnpinStaging{3, JobId{1}}));
  Slices(1);
  EXPECT_EQ(Registrations(), kSlices - 1);
  EXPECT_FALSE(dispatch_.Take<StagingPinned>().has_value()) << "nobody may free it yet";
  Work();
  answer = dispatch_.Take<StagingPinned>();
  ASSERT_TRUE(answer && answer->on_gpus.ok());
  EXPECT_EQ(*answer->on_gpus, nullptr);
  EXPECT_EQ(Registrations(), 0U);
}

TEST_F(SlicedPinning, OfStagingThatIsNoWholePagesIsRefused) {
  EXPECT_TRUE(mapper_->inbox().Send(PinStaging{3, JobId{1}, 1000, Memory().subspan(64)}));
  Work();
  const std::optional<StagingPinned> answer = dispatch_.Take<StagingPinned>();
  ASSERT_TRUE(answer && !answer->on_gpus.ok());
  EXPECT_EQ(answer->on_gpus.error().code(), Code::kUnavailable);
  EXPECT_EQ(Registrations(), 0U);
}

// Its lanes free that memory next.
TEST_F(SlicedPinning, OfStagingEndsWithTheService) {
  EXPECT_TRUE(mapper_->inbox().Send(PinStaging{3, JobId{1}, 1000, Memory().first(kGpuSize)}));
  EXPECT_TRUE(mapper_->inbox().Send(
      PinStaging{4, JobId{1}, 1000, Memory().subspan(kMappingSlice, 2 * kMappingSlice)}));
  Slices(2);
  EXPECT_EQ(Registrations(), 2U);
  mapper_->Release();
  EXPECT_EQ(Registrations(), 0U);
}

// No place reaches over two slices, whatever its size.
TEST_F(SlicedPinning, OfScratchLetsRegistrationsOfOthersPass) {
  for (const std::uint64_t place : {std::uint64_t{4} << 20, std::uint64_t{32} << 20}) {
    const std::uint64_t slices = place > kMappingSlice ? 2 : kSlices;
    const std::uint64_t bytes = slices * std::max<std::uint64_t>(place, kMappingSlice);
    EXPECT_TRUE(mapper_->inbox().Send(MakeScratch{
        .job = JobId{1}, .uid = 1000, .place_bytes = place, .places_count = bytes / place}));
    Slices(1);
    EXPECT_EQ(Registrations(), 1U);
    RegisterForAnother();
    Slices(1);
    EXPECT_TRUE(rpc_.Take<SegmentMapped>().has_value());
    EXPECT_FALSE(dispatch_.Take<ScratchMade>().has_value());
    Work();
    std::optional<ScratchMade> made = dispatch_.Take<ScratchMade>();
    ASSERT_TRUE(made && made->memory.ok());
    EXPECT_EQ(Registrations(), slices);
    EXPECT_EQ(made->memory->size(), bytes);
    DiscardScratch discarded{.memory = {}, .uid = 1000};
    discarded.memory.push_back(std::move(*made->memory));
    made.reset();
    EXPECT_TRUE(mapper_->inbox().Send(std::move(discarded)));
    Slices(1);
    EXPECT_EQ(Registrations(), slices - 1);
    Work();
    EXPECT_EQ(Registrations(), 0U);
  }
}

TEST_F(GpuMapper, SaysWhatTheDriverSaysOfResidualsThatItDoesNotPin) {
  Start();
  support::RecordingInbox<DispatchMessage> dispatch;
  mapper_->ConnectDispatch(dispatch);
  Mapping memory = Mapping::Anonymous(kGpuSize).value();
  doubled_.fail("cuMemHostRegister", 1, transport::CuResult::kOutOfMemory);
  EXPECT_TRUE(mapper_->inbox().Send(PinResiduals{JobId{1}, 0, {memory.data(), kGpuSize}}));
  Work();
  const std::optional<ResidualsPinned> answer = dispatch.Take<ResidualsPinned>();
  ASSERT_TRUE(answer.has_value());
  ASSERT_FALSE(answer->pinned.ok());
  EXPECT_EQ(answer->pinned.error().code(), Code::kExhausted);
}

TEST_F(GpuMapper, AnswersWithTheDriversWordsWhenItRefuses) {
  Start();
  const auto refused = [&](const char* function, transport::CuResult result, Code code) {
    MapDeviceSegment message = Granted(0);
    doubled_.fail(function, 1, result);
    const Result<SegmentMemory> answer = Map(std::move(message));
    ASSERT_FALSE(answer.ok()) << function;
    EXPECT_EQ(answer.error().code(), code) << answer.error().text();
    EXPECT_EQ(Row(0).held_bytes, 0U);
    EXPECT_EQ(Row(0).segments, 0U);
  };
  refused("cuMemImportFromShareableHandle", transport::CuResult::kInvalidValue,
          Code::kInvalidArgument);
  refused("cuMemMap", transport::CuResult::kOutOfMemory, Code::kExhausted);
  refused("cuMemAddressReserve", transport::CuResult::kOutOfMemory, Code::kExhausted);
  EXPECT_TRUE(Map(Granted(0)).ok()) << "nothing of it stays";
}

TEST_F(GpuMapper, RefusesMemoryOfAGpuThatItDoesNotSee) {
  Start();
  MapDeviceSegment message = Granted(0);
  message.handle.device[3] ^= 0xff;
  const Result<SegmentMemory> answer = Map(std::move(message));
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().code(), Code::kNotFound) << answer.error().text();
}

TEST_F(GpuMapper, MapsForItsOwnGpuAloneWhereNoOtherReachesIt) {
  const cuda_double::Environment alone{{"PEERS", "none"}};
  Start();
  Result<SegmentMemory> memory = Map(Granted(1));
  ASSERT_TRUE(memory.ok()) << memory.error().text();
  const auto address = reinterpret_cast<transport::CuAddress>(memory->data());
  EXPECT_NE(doubled_.may_touch(1, address, kGpuSize, 1), 0);
  EXPECT_EQ(doubled_.may_touch(0, address, kGpuSize, 0), 0);
  Discard(std::move(*memory));
}

// Collectives whose kernels wait for other nodes.
TEST_F(GpuMapper, LetsTheDriverBeWhileCollectivesAreUnderWayAndMapsTheHostsMemoryMeanwhile) {
  Start();
  Result<SegmentMemory> held = Map(Granted(1));
  ASSERT_TRUE(held.ok());
  transport::MemoryGate& gate = gpus_->memory_gate();
  ASSERT_TRUE(gate.TryBeginCollective());
  EXPECT_TRUE(mapper_->inbox().Send(Granted(0)));
  EXPECT_TRUE(mapper_->inbox().Send(DiscardMemory{std::move(*held)}));
  EXPECT_TRUE(
      mapper_->inbox().Send(MakeScratch{.job = JobId{3}, .place_bytes = 4096, .places_count = 1}));
  Work();
  EXPECT_FALSE(rpc_.Take<SegmentMapped>().has_value());
  EXPECT_EQ(Row(0).segments, 0U);
  EXPECT_EQ(Row(1).segments, 1U);
  EXPECT_TRUE(mapper_->PrepareToSleep());
  EXPECT_EQ(mapper_->NextDeadline(), transport::MemoryGate::kLookEvery);
  ipc::SealedMemory memory = ipc::CreateSealedMemory("headrace-test", kGpuSize).value();
  std::memset(memory.mapping.data(), 1, kGpuSize);
  EXPECT_TRUE(mapper_->inbox().Send(
      MapSegment{.memory = std::move(memory.fd), .size = kGpuSize, .token = 2}));
  EXPECT_FALSE(mapper_->PrepareToSleep());
  Work();
  std::optional<SegmentMapped> mapped = rpc_.Take<SegmentMapped>();
  ASSERT_TRUE(mapped && mapped->memory.ok());
  EXPECT_EQ(mapped->token, 2U);

  gate.EndCollective();
  support::RecordingInbox<DispatchMessage> dispatch;
  mapper_->ConnectDispatch(dispatch);
  Work(transport::MemoryGate::kLookEvery);
  mapped = rpc_.Take<SegmentMapped>();
  ASSERT_TRUE(mapped && mapped->memory.ok());
  EXPECT_EQ(Row(0).segments, 1U);
  EXPECT_EQ(Row(1).segments, 0U);
  ASSERT_TRUE(dispatch.Take<ScratchMade>().has_value());
  EXPECT_EQ(mapper_->NextDeadline(), kNever);
  EXPECT_TRUE(gate.TryBeginCollective()) << "calls have ended";
}

TEST_F(GpuMapper, MapsAllTheSameWhenACollectiveTakesLong) {
  Start();
  ASSERT_TRUE(gpus_->memory_gate().TryBeginCollective());
  EXPECT_TRUE(mapper_->inbox().Send(Granted(0)));
  EXPECT_TRUE(mapper_->inbox().Send(Granted(0)));
  Work();
  EXPECT_FALSE(rpc_.Take<SegmentMapped>().has_value());
  Work(transport::MemoryGate::kPatience);
  EXPECT_EQ(rpc_.Of<SegmentMapped>().size(), 2U) << "the second does not wait once more";
}

TEST_F(GpuMapper, SleepsAgainWhenWhatWaitedForTheDriverIsCancelled) {
  Start();
  ASSERT_TRUE(gpus_->memory_gate().TryBeginCollective());
  EXPECT_TRUE(mapper_->inbox().Send(Granted(0)));
  Work();
  EXPECT_TRUE(mapper_->inbox().Send(CancelMapping{}));
  Work();
  std::optional<SegmentMapped> answer = rpc_.Take<SegmentMapped>();
  ASSERT_TRUE(answer && !answer->memory.ok());
  EXPECT_EQ(answer->memory.error().code(), Code::kCancelled);
  EXPECT_EQ(mapper_->NextDeadline(), kNever);
}

TEST_F(GpuMapper, MakesScratchOfTheHostAndGivesItBack) {
  Start();
  support::RecordingInbox<DispatchMessage> dispatch;
  mapper_->ConnectDispatch(dispatch);
  EXPECT_TRUE(
      mapper_->inbox().Send(MakeScratch{.job = JobId{3}, .place_bytes = 4096, .places_count = 2}));
  Work();
  std::optional<ScratchMade> pinned = dispatch.Take<ScratchMade>();
  ASSERT_TRUE(pinned && pinned->memory.ok());
  EXPECT_EQ(pinned->job, JobId{3});
  EXPECT_EQ(pinned->memory->size(), 8192U);
  CudaDoubleCounts counts{};
  doubled_.counts(&counts);
  EXPECT_EQ(counts.host_registrations, 1U);
  DiscardScratch discarded;
  discarded.memory.push_back(std::move(*pinned->memory));
  pinned.reset();
  EXPECT_TRUE(mapper_->inbox().Send(std::move(discarded)));
  Work();
  doubled_.counts(&counts);
  EXPECT_EQ(counts.host_registrations, 0U);
  doubled_.fail("cuMemHostRegister", 1, transport::CuResult::kOutOfMemory);
  EXPECT_TRUE(
      mapper_->inbox().Send(MakeScratch{.job = JobId{3}, .place_bytes = 64, .places_count = 2}));
  Work();
  pinned = dispatch.Take<ScratchMade>();
  ASSERT_TRUE(pinned && !pinned->memory.ok());
  EXPECT_EQ(pinned->memory.error().code(), Code::kExhausted);
}

TEST_F(GpuMapper, MakesScratchOnAGpuThatAllOfThemReach) {
  Start();
  support::RecordingInbox<DispatchMessage> dispatch;
  mapper_->ConnectDispatch(dispatch);
  const MakeScratch request{.job = JobId{3}, .gpu = 1, .place_bytes = 4096, .places_count = 2};
  EXPECT_TRUE(mapper_->inbox().Send(request));
  Work();
  std::optional<ScratchMade> made = dispatch.Take<ScratchMade>();
  ASSERT_TRUE(made && made->memory.ok());
  EXPECT_EQ(made->gpu, 1);
  EXPECT_EQ(made->instead, "");
  EXPECT_EQ(made->memory->device(), 1);
  EXPECT_EQ(made->memory->on_host(), nullptr);
  EXPECT_GE(made->memory->size(), 8192U);
  const auto address = reinterpret_cast<transport::CuAddress>(made->memory->on_gpus());
  for (const int device : {0, 1}) {
    EXPECT_NE(doubled_.may_touch(device, address, 8192, 1), 0) << device;
  }
  EXPECT_EQ(Row(1).held_bytes, made->memory->size());
  EXPECT_EQ(Row(1).segments, 0U) << "it is nobody's but the service's";
  DiscardScratch discarded{.memory = {}, .uid = 1000};
  discarded.memory.push_back(std::move(*made->memory));
  EXPECT_TRUE(mapper_->inbox().Send(std::move(discarded)));
  Work();
  EXPECT_EQ(Row(1).held_bytes, 0U);
  doubled_.fail("cuMemCreate", 1, transport::CuResult::kOutOfMemory);
  EXPECT_TRUE(mapper_->inbox().Send(request));
  Work();
  made = dispatch.Take<ScratchMade>();
  ASSERT_TRUE(made && made->memory.ok());
  EXPECT_EQ(made->memory->device(), transport::kHost);
  EXPECT_NE(made->instead.find("OUT_OF_MEMORY"), std::string::npos) << made->instead;
}

}  // namespace
}  // namespace headrace::service
