// The double itself: it refuses what a driver refuses, and lets memory go when a driver would.
#include "tests/support/cuda_double/cuda_double.h"

#include <csignal>

#include "tests/contract/memory/peer.h"
#include "tests/support/device_memory.h"
#include "tests/unit/transport/memory/double_test.h"
#include "transport/memory/device_arena.h"

namespace headrace::transport {
namespace {

using cuda_double::Environment;

constexpr std::size_t kPiece = std::size_t{2} << 20;

class CudaDouble : public DoubleTest {
 protected:
  void SetUp() override {
    Start();
    properties_.handle_types = CuHandleType::kPosixFd;
    properties_.location = {CuLocationType::kDevice, 0};
  }
  CuMemory Create(std::size_t size) const {
    CuMemory memory = 0;
    EXPECT_EQ(call().mem_create(&memory, size, &properties_, 0), CuResult::kSuccess);
    return memory;
  }
  CuAddress Reserve(std::size_t size) const {
    CuAddress address = 0;
    EXPECT_EQ(call().mem_address_reserve(&address, size, 0, 0, 0), CuResult::kSuccess);
    return address;
  }

  CuAllocationProperties properties_;
};

TEST_F(CudaDouble, RefusesSizesThatAreNoMultipleOfTheGranularity) {
  CuMemory memory = 0;
  CuAddress address = 0;
  EXPECT_EQ(call().mem_create(&memory, 4096, &properties_, 0), CuResult::kInvalidValue);
  EXPECT_EQ(call().mem_address_reserve(&address, kPiece + 4096, 0, 0, 0), CuResult::kInvalidValue);
}

TEST_F(CudaDouble, MapsOnlyAtReservedAddressesAndOnlyOnce) {
  const CuMemory memory = Create(kPiece);
  const CuAddress address = Reserve(kPiece);
  EXPECT_EQ(call().mem_map(address + kPiece, kPiece, 0, memory, 0), CuResult::kInvalidValue);
  EXPECT_EQ(call().mem_map(address, kPiece, 4096, memory, 0), CuResult::kInvalidValue);
  EXPECT_EQ(call().mem_map(address, kPiece, 0, memory, 0), CuResult::kSuccess);
  EXPECT_EQ(call().mem_map(address, kPiece, 0, memory, 0), CuResult::kInvalidValue);
  EXPECT_EQ(call().mem_address_free(address, kPiece), CuResult::kInvalidValue) << "still mapped";
  EXPECT_EQ(call().mem_unmap(address, kPiece), CuResult::kSuccess);
  EXPECT_EQ(call().mem_unmap(address, kPiece), CuResult::kInvalidValue);
  EXPECT_EQ(call().mem_address_free(address, kPiece), CuResult::kSuccess);
  EXPECT_EQ(call().mem_release(memory), CuResult::kSuccess);
  EXPECT_EQ(call().mem_release(memory), CuResult::kInvalidValue) << "was released";
}

TEST_F(CudaDouble, UnmapsWholeMappingsOnly) {
  const CuMemory memory = Create(2 * kPiece);
  const CuAddress address = Reserve(2 * kPiece);
  ASSERT_EQ(call().mem_map(address, 2 * kPiece, 0, memory, 0), CuResult::kSuccess);
  EXPECT_EQ(call().mem_unmap(address, kPiece), CuResult::kInvalidValue);
  EXPECT_EQ(call().mem_unmap(address + kPiece, kPiece), CuResult::kInvalidValue);
  EXPECT_EQ(call().mem_unmap(address, 2 * kPiece), CuResult::kSuccess);
  EXPECT_EQ(call().mem_address_free(address, kPiece), CuResult::kInvalidValue);
  EXPECT_EQ(call().mem_address_free(address, 2 * kPiece), CuResult::kSuccess);
  EXPECT_EQ(call().mem_release(memory), CuResult::kSuccess);
}

TEST_F(CudaDouble, KeepsMemoryForAsLongAsItIsMapped) {
  const CuMemory memory = Create(kPiece);
  const CuAddress address = Reserve(kPiece);
  ASSERT_EQ(call().mem_map(address, kPiece, 0, memory, 0), CuResult::kSuccess);
  ASSERT_EQ(call().mem_release(memory), CuResult::kSuccess);
  const CuAccessDescription access{{CuLocationType::kDevice, 0}, CuAccess::kReadWrite};
  ASSERT_EQ(call().mem_set_access(address, kPiece, &access, 1), CuResult::kSuccess);
  *reinterpret_cast<int*>(address) = 5;
  CuMemory again = 0;
  ASSERT_EQ(call().mem_retain(&again, reinterpret_cast<void*>(address)), CuResult::kSuccess);
  EXPECT_EQ(counts().memory_handles, 1U);
  EXPECT_EQ(call().mem_release(again), CuResult::kSuccess);
  EXPECT_EQ(call().mem_unmap(address, kPiece), CuResult::kSuccess);
  EXPECT_EQ(call().mem_address_free(address, kPiece), CuResult::kSuccess);
}

using CudaDoubleDeathTest = CudaDouble;

// Without the handler of a sanitizer, whose report would count as a finding.
void Touch(volatile int& word) {
  std::signal(SIGSEGV, SIG_DFL);
  word = 1;
}

TEST_F(CudaDoubleDeathTest, LetsNobodyTouchWhatIsNotMappedOrNotAllowed) {
  const CuMemory memory = Create(kPiece);
  const CuAddress address = Reserve(kPiece);
  auto& word = *reinterpret_cast<volatile int*>(address);
  EXPECT_DEATH(Touch(word), "") << "reserved, not mapped";
  ASSERT_EQ(call().mem_map(address, kPiece, 0, memory, 0), CuResult::kSuccess);
  EXPECT_DEATH(Touch(word), "") << "mapped, no access";
  const CuAccessDescription access{{CuLocationType::kDevice, 0}, CuAccess::kReadWrite};
  ASSERT_EQ(call().mem_set_access(address, kPiece, &access, 1), CuResult::kSuccess);
  word = 1;
  ASSERT_EQ(call().mem_unmap(address, kPiece), CuResult::kSuccess);
  EXPECT_DEATH(Touch(word), "") << "unmapped";
  EXPECT_EQ(call().mem_address_free(address, kPiece), CuResult::kSuccess);
  EXPECT_EQ(call().mem_release(memory), CuResult::kSuccess);
}

TEST_F(CudaDouble, ExportsOnlyWhatWasMadeForIt) {
  properties_.handle_types = CuHandleType::kNone;
  const CuMemory memory = Create(kPiece);
  int fd = -1;
  EXPECT_EQ(call().mem_export(&fd, memory, CuHandleType::kPosixFd, 0), CuResult::kInvalidValue);
  EXPECT_EQ(call().mem_release(memory), CuResult::kSuccess);
}

TEST_F(CudaDouble, NeedsACurrentContextWhereADriverDoes) {
  CuAddress address = 0;
  CuStream stream = nullptr;
  EXPECT_EQ(call().mem_alloc(&address, 4096), CuResult::kInvalidContext);
  EXPECT_EQ(call().stream_create(&stream, 0, 0), CuResult::kInvalidContext);
  EXPECT_EQ(call().stream_synchronize(nullptr), CuResult::kInvalidContext);
  // Also where a handle or an address would tell which context is meant.
  const auto memory = AllocateDeviceMemory(contexts_[1], 4096);
  auto made = CreateStream(contexts_[1], kCuStreamNonBlocking, 0);
  auto event = CreateEvent(contexts_[1]);
  ASSERT_TRUE(memory.ok() && made.ok() && event.ok());
  stream = made->get().thing;
  CuIpcHandle handle{};
  std::uint32_t answer = 0;
  EXPECT_EQ(call().mem_get_address_range(&address, nullptr, memory->get().thing),
            CuResult::kInvalidContext);
  EXPECT_EQ(call().ipc_get_mem_handle(&handle, memory->get().thing), CuResult::kInvalidContext);
  EXPECT_EQ(
      call().pointer_get_attribute(&answer, CuPointerAttribute::kMemoryType, memory->get().thing),
      CuResult::kInvalidContext);
  EXPECT_EQ(call().mem_host_unregister(&answer), CuResult::kInvalidContext);
  EXPECT_EQ(call().mem_host_get_device_pointer(&address, &answer, 0), CuResult::kInvalidContext);
  EXPECT_EQ(call().memset_async(memory->get().thing, 0, 1, stream), CuResult::kInvalidContext);
  EXPECT_EQ(call().stream_query(stream), CuResult::kInvalidContext);
  EXPECT_EQ(call().stream_destroy(stream), CuResult::kInvalidContext);
  EXPECT_EQ(call().event_record(event->get().thing, stream), CuResult::kInvalidContext);
  EXPECT_EQ(call().event_synchronize(event->get().thing), CuResult::kInvalidContext);
  EXPECT_EQ(call().event_destroy(event->get().thing), CuResult::kInvalidContext);
  EXPECT_EQ(call().event_query(event->get().thing), CuResult::kSuccess) << "not listed for it";
  const CuContext first = contexts_[0].get().context;
  const CurrentContext current(*driver_, first);
  contexts_.erase(contexts_.begin());
  EXPECT_EQ(call().mem_alloc(&address, 4096), CuResult::kContextIsDestroyed);
  EXPECT_EQ(call().ctx_push(first), CuResult::kInvalidContext) << "its last use is gone";
}

TEST_F(CudaDouble, TakesWhatLivesInAContextAlongAndSaysSo) {
  CuStream stream = nullptr;
  CuEvent event = nullptr;
  {
    const CurrentContext current(*driver_, contexts_[0].get().context);
    ASSERT_EQ(call().stream_create(&stream, 0, 0), CuResult::kSuccess);
    ASSERT_EQ(call().event_create(&event, 0), CuResult::kSuccess);
  }
  contexts_.clear();
  EXPECT_EQ(counts().lost_with_context, 2U);
  {
    const auto context = RetainPrimaryContext(*driver_, 0);
    ASSERT_TRUE(context.ok());
    const CurrentContext current(*driver_, context->get().context);
    EXPECT_EQ(call().stream_destroy(stream), CuResult::kInvalidHandle);
    EXPECT_EQ(call().event_destroy(event), CuResult::kInvalidHandle);
  }
  ASSERT_EQ(doubled_.restart(), 1);
}

TEST_F(CudaDouble, ReachesAPeersAllocationOnlyOnceThatIsEnabled) {
  const auto memory = AllocateDeviceMemory(contexts_[0], 4096);
  ASSERT_TRUE(memory.ok());
  const CurrentContext current(*driver_, contexts_[1].get().context);
  EXPECT_EQ(doubled_.may_touch(0, memory->get().thing, 4096, 1), 1);
  EXPECT_EQ(call().memset_async(memory->get().thing, 1, 4096, nullptr), CuResult::kInvalidValue);
  const CuContext owner = contexts_[0].get().context;
  EXPECT_EQ(call().ctx_enable_peer_access(owner, 0), CuResult::kSuccess);
  EXPECT_EQ(call().ctx_enable_peer_access(owner, 0), CuResult::kPeerAccessAlreadyEnabled);
  EXPECT_EQ(call().memset_async(memory->get().thing, 1, 4096, nullptr), CuResult::kSuccess);
  EXPECT_EQ(call().ctx_synchronize(), CuResult::kSuccess);
}

TEST_F(CudaDouble, CountsWhatAllProcessesHoldOfAGpu) {
  contexts_.clear();
  driver_ = nullptr;
  const Environment own{{"MACHINE", "counts" + std::to_string(::getpid())}};
  Start();
  const auto held = [&] {
    const CurrentContext current(*driver_, contexts_[0].get().context);
    std::size_t free = 0;
    std::size_t total = 0;
    EXPECT_EQ(call().mem_get_info(&free, &total), CuResult::kSuccess);
    return total - free;
  };
  EXPECT_EQ(held(), 0U);
  memory_contract::Peer peer("double");
  ASSERT_TRUE(peer.Allocate(kPiece).ok());
  EXPECT_EQ(held(), kPiece);
  const auto arena = DeviceArena::Allocate(*driver_, 0, kPiece);
  ASSERT_TRUE(arena.ok());
  EXPECT_EQ(held(), 2 * kPiece);
  const auto grant = arena->Grant();
  ASSERT_TRUE(grant.ok());
  ASSERT_TRUE(peer.Import(*grant).ok());
  EXPECT_EQ(held(), kPiece) << "the peer let its own go, and an import takes no more";
  peer.Kill();
  EXPECT_EQ(held(), kPiece);
}

}  // namespace
}  // namespace headrace::transport
