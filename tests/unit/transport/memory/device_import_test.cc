// Imports: who may reach them, and every false claim that is refused.
#include "transport/memory/device_import.h"

#include <sys/mman.h>
#include <unistd.h>

#include <functional>

#include "tests/contract/memory/peer.h"
#include "tests/support/expect_text.h"
#include "tests/unit/transport/memory/double_test.h"
#include "tests/unit/transport/memory/segments.h"
#include "transport/memory/cuda_device.h"

namespace headrace::transport {
namespace {

using cuda_double::Environment;
using memory_contract::Peer;

class DeviceImportTest : public DoubleTest {
 protected:
  // Memory of GPU 0 and a grant of it.
  void StartWithGrant() {
    Start();
    auto arena = DeviceArena::Allocate(*driver_, 0, 4 * kMiB);
    ASSERT_TRUE(arena.ok()) << arena.error().text();
    auto grant = arena->Grant();
    ASSERT_TRUE(grant.ok()) << grant.error().text();
    arena_ = std::make_unique<DeviceArena>(std::move(*arena));
    grant_ = std::move(*grant);
  }
  void TearDown() override {
    arena_ = nullptr;
    DoubleTest::TearDown();
  }
  Result<DeviceImport> Open(std::span<const PrimaryContext> users) const {
    return DeviceImport::Open(*driver_, grant_.handle, grant_.fds, users);
  }

  std::unique_ptr<DeviceArena> arena_;
  DeviceGrant grant_;
};

TEST_F(DeviceImportTest, IsReachableByItsUsersAndNobodyElse) {
  const Environment three{{"DEVICES", "3"}};
  StartWithGrant();
  const auto import = Open(std::span(contexts_).first(2));
  ASSERT_TRUE(import.ok()) << import.error().text();
  EXPECT_EQ(import->device(), 0);
  EXPECT_EQ(import->size(), 4 * kMiB);
  EXPECT_NE(import->address(), arena_->address());
  const CurrentContext second(*driver_, contexts_[1].get().context);
  EXPECT_EQ(call().memset_async(import->address(), 7, 4 * kMiB, nullptr), CuResult::kSuccess);
  EXPECT_EQ(call().ctx_synchronize(), CuResult::kSuccess);
  unsigned char byte = 0;
  const CurrentContext owner(*driver_, contexts_[0].get().context);
  EXPECT_EQ(call().memcpy_to_host(&byte, arena_->address() + 4 * kMiB - 1, 1), CuResult::kSuccess);
  EXPECT_EQ(byte, 7);
  const CurrentContext stranger(*driver_, contexts_[2].get().context);
  EXPECT_EQ(call().memset_async(import->address(), 8, 1, nullptr), CuResult::kInvalidValue);
}

TEST_F(DeviceImportTest, KeepsTheMemoryWhenItsOwnerLetsGo) {
  StartWithGrant();
  const auto import = Open(contexts_);
  ASSERT_TRUE(import.ok());
  grant_.fds.clear();
  arena_ = nullptr;
  const CurrentContext current(*driver_, contexts_[0].get().context);
  EXPECT_EQ(call().memset_async(import->address(), 9, 4 * kMiB, nullptr), CuResult::kSuccess);
  EXPECT_EQ(call().ctx_synchronize(), CuResult::kSuccess);
  EXPECT_EQ(counts().memory_handles, 0U) << "the mapping alone keeps it";
}

TEST_F(DeviceImportTest, GivesBackWhatItHeldWhenItBecomesAnother) {
  StartWithGrant();
  const auto before = cuda_double::CountsOf(doubled_);
  const auto held = counts();
  {
    auto import = Open(contexts_);
    auto other = Open(contexts_);
    ASSERT_TRUE(import.ok() && other.ok());
    const CuAddress address = other->address();
    *import = std::move(*other);
    EXPECT_EQ(import->address(), address);
    EXPECT_EQ(counts().reservations, held.reservations + 1);
    EXPECT_EQ(counts().mappings, held.mappings + 1);
  }
  EXPECT_EQ(cuda_double::CountsOf(doubled_), before);
}

TEST_F(DeviceImportTest, SaysWhichGpuCannotReachTheMemory) {
  const Environment apart{{"PEERS", "0-1"}};
  StartWithGrant();
  const auto import = Open(contexts_);
  ASSERT_FALSE(import.ok());
  EXPECT_EQ(import.error().code(), Code::kUnavailable);
  EXPECT_EQ(TextOf(import),
            "GPU 1 cannot access memory of GPU 0: there is no direct path between them "
            "(nvidia-smi topo -p2p r shows why)");
  EXPECT_EQ(TextOf(Open(std::span(contexts_).first(1))), "ok");
}

TEST_F(DeviceImportTest, RefusesEveryFalseClaim) {
  StartWithGrant();
  const struct {
    const char* refusal;
    std::function<void(DeviceHandle&)> lie;
  } lies[] = {
      {"names 0 bytes", [](DeviceHandle& h) { h.size = 0; }},
      {"bytes from offset", [](DeviceHandle& h) { h.size = kDeviceMemorySizeMax + 1; }},
      {"bytes from offset", [](DeviceHandle& h) { h.offset = UINT64_MAX - 4096; }},
      {"unknown kind 7", [](DeviceHandle& h) { h.kind = static_cast<DeviceHandleKind>(7); }},
      {"pieces of 0 bytes", [](DeviceHandle& h) { h.piece_size = 0; }},
      {"pieces of 9223372036854775808 bytes",
       [](DeviceHandle& h) { h.piece_size = std::uint64_t{1} << 63; }},
      {"has 2 pieces and 1 descriptors", [](DeviceHandle& h) { h.size += 1; }},
      {"has 2 pieces and 1 descriptors", [](DeviceHandle& h) { h.offset = 1; }},
      {"253 are the most", [](DeviceHandle& h) { h.piece_size = 4096, h.size = 254 * 4096; }},
      {"maps in multiples of 2097152", [](DeviceHandle& h) { h.size = h.piece_size = 3 * kMiB; }},
      {"piece 0 of 1: map 8388608 bytes",
       [](DeviceHandle& h) { h.size = h.piece_size = 8 * kMiB; }},
      {"is not among the 2 GPUs", [](DeviceHandle& h) { h.device[3] ^= 1; }},
      {"says GPU 1 of memory that is elsewhere",
       [&](DeviceHandle& h) { h.device = DescribeDevice(*driver_, 1)->uuid; }},
      {"is a CUDA IPC handle and has descriptors",
       [](DeviceHandle& h) { h.kind = DeviceHandleKind::kLegacyIpc; }},
  };
  const auto before = cuda_double::CountsOf(doubled_);
  const DeviceHandle honest = grant_.handle;
  for (const auto& lie : lies) {
    grant_.handle = honest;
    lie.lie(grant_.handle);
    const auto import = Open(contexts_);
    ASSERT_FALSE(import.ok()) << lie.refusal;
    EXPECT_NE(import.error().text().find(lie.refusal), std::string::npos) << import.error().text();
    EXPECT_EQ(cuda_double::CountsOf(doubled_), before) << lie.refusal;
  }
  grant_.handle = honest;
  EXPECT_EQ(TextOf(Open(contexts_)), "ok");
}

TEST_F(DeviceImportTest, RefusesADescriptorThatIsNoGpuMemory) {
  StartWithGrant();
  grant_.fds[0] = UniqueFd(::memfd_create("not-a-gpu", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(grant_.fds[0].get(), 4 << 20), 0);
  EXPECT_EQ(TextOf(Open(contexts_)),
            "piece 0 of 1: import GPU memory from a file descriptor: CUDA_ERROR_INVALID_VALUE "
            "(invalid argument)");
}

TEST_F(DeviceImportTest, LeavesNothingWhenAnyStepFails) {
  Start();
  const auto segment = MakeSegment(*driver_, 0, 3, 2 * kMiB, CuHandleType::kPosixFd);
  auto grant = GrantExisting(*driver_, segment.address(), 6 * kMiB);
  ASSERT_TRUE(grant.ok()) << grant.error().text();
  grant_ = std::move(*grant);
  const auto before = cuda_double::CountsOf(doubled_);
  const struct {
    const char* function;
    std::uint64_t nth;
  } steps[] = {
      {"cuMemAddressReserve", 1},
      {"cuMemImportFromShareableHandle", 1},
      {"cuMemImportFromShareableHandle", 3},
      {"cuMemGetAllocationPropertiesFromHandle", 2},
      {"cuMemMap", 2},
      {"cuMemSetAccess", 1},
      {"cuMemSetAccess", 2},
  };
  for (const auto& step : steps) {
    doubled_.fail(step.function, step.nth, CuResult::kOutOfMemory);
    const auto import = Open(contexts_);
    ASSERT_FALSE(import.ok()) << step.function;
    EXPECT_EQ(import.error().code(), Code::kExhausted) << import.error().text();
    EXPECT_EQ(cuda_double::CountsOf(doubled_), before) << step.function;
  }
  EXPECT_EQ(TextOf(Open(contexts_)), "ok");
}

class LegacyImport : public DeviceImportTest {
 protected:
  void StartWithPeer(const std::vector<std::string>& variables = {}) {
    peer_ = std::make_unique<Peer>("double_legacy", variables);
    Start();
    auto grant = peer_->Allocate(kMiB);
    ASSERT_TRUE(grant.ok()) << grant.error().text();
    grant_ = std::move(*grant);
    ASSERT_EQ(grant_.handle.kind, DeviceHandleKind::kLegacyIpc);
  }

  std::unique_ptr<Peer> peer_;
};

TEST_F(LegacyImport, IsReachableByAllUsers) {
  StartWithPeer();
  const auto import = Open(contexts_);
  ASSERT_TRUE(import.ok()) << import.error().text();
  EXPECT_EQ(counts().legacy_mappings, 1U);
  const CurrentContext second(*driver_, contexts_[1].get().context);
  EXPECT_EQ(call().memset_async(import->address(), 7, kMiB, nullptr), CuResult::kSuccess);
  EXPECT_EQ(call().ctx_synchronize(), CuResult::kSuccess);
}

TEST_F(LegacyImport, IsRefusedWhereTheGpuOfAUserMayNotTouchIt) {
  const Environment apart{{"LACKS", "legacy_peers"}};
  StartWithPeer();
  const auto before = cuda_double::CountsOf(doubled_);
  const auto refused = Open(contexts_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kUnavailable);
  EXPECT_VARYING_TEXT(TextOf(refused), "GPU 1");
  EXPECT_EQ(cuda_double::CountsOf(doubled_), before) << "the mapping stayed";
  EXPECT_EQ(TextOf(Open(std::span(contexts_).first(1))), "ok");
}

TEST_F(LegacyImport, OfOneAllocationTwiceIsOneMapping) {
  StartWithPeer();
  auto first = Open(contexts_);
  auto second = Open(contexts_);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->address(), second->address());
  first = Error(Code::kCancelled, "gone");
  const CurrentContext current(*driver_, contexts_[0].get().context);
  EXPECT_EQ(call().memset_async(second->address(), 1, kMiB, nullptr), CuResult::kSuccess);
  EXPECT_EQ(call().ctx_synchronize(), CuResult::kSuccess);
}

// The driver shares the block of 2 MiB that it lies in, so its mapping begins before it.
TEST_F(LegacyImport, FindsASmallAllocationInTheBlockThatItShares) {
  peer_ = std::make_unique<Peer>("double_legacy");
  Start();
  ASSERT_TRUE(peer_->Allocate(4096).ok()) << "which stands before it";
  auto grant = peer_->Allocate(4096);
  ASSERT_TRUE(grant.ok()) << grant.error().text();
  grant_ = std::move(*grant);
  ASSERT_EQ(TextOf(peer_->Fill(3)), "ok");
  const auto import = Open(contexts_);
  ASSERT_TRUE(import.ok()) << import.error().text();
  EXPECT_EQ(TextOf(peer_->Matches(3)), "ok");
  const CurrentContext current = In();
  EXPECT_EQ(call().memset_async(import->address(), 0, 4096, nullptr), CuResult::kSuccess);
  EXPECT_EQ(call().ctx_synchronize(), CuResult::kSuccess);
  EXPECT_EQ(peer_->Matches(3).code(), Code::kMismatch);
}

TEST_F(LegacyImport, IsRefusedWhereBothProcessesHaveOnePid) {
  // The driver goes by the number alone: another process, the same number, as in two containers.
  StartWithPeer({"HEADRACE_CUDA_DOUBLE_PID=" + std::to_string(::getpid())});
  const auto refused = Open(contexts_);
  EXPECT_EQ(TextOf(refused),
            "open a CUDA IPC handle: CUDA_ERROR_INVALID_CONTEXT (invalid device context)");
  // Where the exporter says its pid, which it does, the reason can be told before.
  grant_.handle.exporter_pid = static_cast<std::uint32_t>(::getpid());
  const auto explained = Open(contexts_);
  EXPECT_EQ(explained.error().code(), Code::kUnavailable);
  EXPECT_VARYING_TEXT(TextOf(explained));
}

TEST_F(LegacyImport, RefusesFalseClaims) {
  StartWithPeer();
  const auto before = cuda_double::CountsOf(doubled_);
  const DeviceHandle honest = grant_.handle;
  const auto refused = [&](std::string_view words) {
    const auto import = Open(contexts_);
    grant_.handle = honest;
    EXPECT_NE(TextOf(import).find(words), std::string::npos) << TextOf(import);
    EXPECT_EQ(cuda_double::CountsOf(doubled_), before) << words;
  };
  grant_.handle.size += 2 * kMiB;
  refused("names 3145728 bytes from offset 512 of memory of 2097152");
  grant_.handle.device = DescribeDevice(*driver_, 1)->uuid;
  refused("says GPU 1 of memory on 0");
  grant_.handle.legacy[0] ^= 1;
  refused("open a CUDA IPC handle: CUDA_ERROR_INVALID_VALUE");
  peer_->Kill();
  refused("open a CUDA IPC handle: CUDA_ERROR_INVALID_HANDLE");
}

TEST_F(LegacyImport, NeedsAContextOfTheMemorysGpu) {
  StartWithPeer();
  EXPECT_EQ(TextOf(Open(std::span(contexts_).last(1))),
            "a CUDA IPC handle of GPU 0 needs a context on it");
}

}  // namespace
}  // namespace headrace::transport
