// What the driver refuses, and what breaks a GPU, ends the transfer that it meets, and no other.
#include <algorithm>
#include <cstring>
#include <set>

#include "tests/support/device_memory.h"
#include "tests/support/expect_text.h"
#include "tests/unit/transport/nvlink/lane_of_gpus.h"
#include "transport/nvlink/kernel_image.h"
#include "transport/nvlink/kernel_work.h"
#include "transport/nvlink/kernels.h"

namespace headrace::transport {
namespace {

constexpr std::size_t kTenPieces = 40'000;  // ten pieces

class NvlinkFailure : public LaneOfGpus {
 protected:
  std::byte* OnesOn(std::size_t device) {
    return OnGpu(device, std::vector<float>(kTenPieces, 1.0F));
  }
  Transfer SumOf(const std::vector<std::byte*>& members, const std::vector<int>& devices,
                 std::uint64_t token = 1) {
    Transfer transfer{.token = token, .kind = Collective::kAllReduce, .count = kTenPieces};
    transfer.dtype = DType::kFloat32;
    transfer.members_count = static_cast<std::uint32_t>(members.size());
    for (std::size_t i = 0; i < members.size(); ++i) {
      transfer.members[i] = members[i];
      transfer.devices[i] = static_cast<std::int8_t>(devices[i]);
    }
    return transfer;
  }
  void ExpectWorks(int device = 0) {
    const auto memory = OnesOn(static_cast<std::size_t>(device));
    const auto other = OnesOn(static_cast<std::size_t>(device));
    const Completion completion = Finish(SumOf({memory, other}, {device, device}, 99));
    ASSERT_EQ(completion.code, Code::kOk) << completion.cause;
    EXPECT_EQ(Read<float>(memory, kTenPieces), std::vector<float>(kTenPieces, 2.0F));
  }
};

TEST_F(NvlinkFailure, OfALaunchEndsTheTransferWithItsCauseAndNothingElse) {
  Start(2);
  for (const std::uint64_t nth : {1U, 2U, 7U}) {
    doubled_.fail("cuLaunchKernel", nth, CuResult::kOutOfMemory);
    const Completion completion = Finish(SumOf({OnesOn(0), OnesOn(1)}, {0, 1}));
    EXPECT_EQ(completion.code, Code::kExhausted);
    EXPECT_VARYING_TEXT(completion.cause, "CUDA_ERROR_OUT_OF_MEMORY");
    EXPECT_TRUE(completion.cause.starts_with("GPU ")) << completion.cause;
    ASSERT_NO_FATAL_FAILURE(ExpectWorks());
  }
}

TEST_F(NvlinkFailure, OfACopyEndsTheTransferWithItsCause) {
  Start(2);
  doubled_.fail("cuMemcpyAsync", 2, CuResult::kInvalidValue);
  Transfer transfer = SumOf({OnesOn(0), OnesOn(1)}, {0, 1});
  transfer.kind = Collective::kBroadcast;
  const Completion completion = Finish(transfer);
  EXPECT_NE(completion.code, Code::kOk);
  EXPECT_VARYING_TEXT(completion.cause, "CUDA_ERROR_INVALID_VALUE");
  ASSERT_NO_FATAL_FAILURE(ExpectWorks());
}

// What runs without a mark is waited for all the same: memory is quiet after the completion.
TEST_F(NvlinkFailure, OfAMarkEndsTheTransferOnceAllIsDone) {
  constexpr std::size_t kMany = 4'000'000;  // in one piece, which takes longer than a look at it
  Start(1, {.ctas = 1, .piece_size = std::size_t{64} << 20});
  for (int round = 0; round < 3; ++round) {
    doubled_.fail("cuEventRecord", 1, CuResult::kOutOfMemory);
    Transfer transfer = SumOf(
        {OnGpu(0, std::vector<float>(kMany, 1.0F)), OnGpu(0, std::vector<float>(kMany, 1.0F))},
        {0, 0});
    transfer.count = kMany;
    const Completion completion = Finish(transfer);
    EXPECT_EQ(completion.code, Code::kExhausted);
    EXPECT_VARYING_TEXT(completion.cause);
    EXPECT_EQ(Read<float>(transfer.members[1], kMany), std::vector<float>(kMany, 2.0F));
  }
}

TEST_F(NvlinkFailure, OfAGpuEndsItsTransfersForGoodAndNotThoseOfOthers) {
  Start(2);
  std::vector<std::string> told;
  gpus_->OnBroken([&told](const std::string& cause) {
    told.push_back(cause);
    return true;
  });
  // Memory of GPU 1 that nobody let GPU 0 reach.
  auto hidden = AllocateDeviceMemory(gpus_->contexts()[1], 4 * kTenPieces);
  ASSERT_TRUE(hidden.ok());
  auto* const hidden_memory = reinterpret_cast<std::byte*>(hidden->get().thing);
  const Completion broken = Finish(SumOf({hidden_memory, hidden_memory}, {0, 0}));
  EXPECT_EQ(broken.code, Code::kUnavailable);
  // Whichever call hears of it first.
  EXPECT_NE(broken.cause.find("GPU 0"), std::string::npos) << broken.cause;
  EXPECT_NE(broken.cause.find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos) << broken.cause;
  const auto other = OnesOn(1);
  const Completion later = Finish(SumOf({other, hidden_memory}, {1, 1}));
  EXPECT_EQ(later.code, Code::kOk) << "GPU 1 does not notice: " << later.cause;
  const Completion again = Finish(SumOf({hidden_memory, hidden_memory}, {0, 0}));
  EXPECT_EQ(again.code, Code::kUnavailable) << "for good";
  // Both at once: GPU 1's share is done before it ends.
  const Completion both = Finish(SumOf({other, hidden_memory}, {1, 0}));
  EXPECT_EQ(both.code, Code::kUnavailable);
  ASSERT_EQ(told.size(), 1U) << "once, whatever fails afterwards";
  // Whichever call was the first to get to know.
  EXPECT_TRUE(told[0].starts_with("GPU 0: ")) << told[0];
  EXPECT_TRUE(
      told[0].ends_with(": CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)"))
      << told[0];
}

// The launch itself is refused nothing; who comes later gets to know, and it may be somebody else.
TEST_F(NvlinkFailure, OfAKernelIsToldByALaterCallWhateverThatIs) {
  Start(1);
  int times = 0;
  gpus_->OnBroken([&times](const std::string& cause) {
    EXPECT_EQ(cause,
              "GPU 0: allocate GPU memory: CUDA_ERROR_LAUNCH_FAILED (unspecified launch "
              "failure)");
    return ++times == 2;
  });
  const auto kernels = Kernels::Load(gpus_->contexts()[0]);
  ASSERT_TRUE(kernels.ok());
  KernelWork work{};
  {
    const CurrentContext current(gpus_->driver(), gpus_->contexts()[0].get().context);
    doubled_.breaks("cuLaunchKernel", 1, CuResult::kLaunchFailed);
    void* parameters[] = {&work};
    EXPECT_EQ(gpus_->driver().call().launch_kernel(kernels->copy(), 1, 1, 1, 1, 1, 1, 0, nullptr,
                                                   parameters, nullptr),
              CuResult::kSuccess);
    EXPECT_EQ(gpus_->driver().call().ctx_synchronize(), CuResult::kLaunchFailed);
  }
  EXPECT_EQ(times, 0) << "the test asked past the driver's wrapper";
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(AllocateDeviceMemory(gpus_->contexts()[0], 64).error().code(), Code::kUnavailable);
  }
  EXPECT_EQ(times, 2) << "again until it is heard";
}

TEST_F(NvlinkFailure, OfReachingIsRefusedBeforeItBreaksAnything) {
  const cuda_double::Environment machine({{"PEERS", "0-1"}});
  OpenGpus();
  OpenLane();
  Transfer transfer = SumOf({OnesOn(0), OnesOn(1)}, {0, 1});
  const Completion completion = Finish(transfer);
  EXPECT_EQ(completion.code, Code::kUnavailable);
  EXPECT_VARYING_TEXT(completion.cause, "GPU 1", "GPU 0");
  EXPECT_EQ(Read<float>(transfer.members[0], kTenPieces), std::vector<float>(kTenPieces, 1.0F));
  ASSERT_NO_FATAL_FAILURE(ExpectWorks());
}

TEST_F(NvlinkFailure, ToOpenGivesBackWhatItTook) {
  Start(2);
  lane_.reset();
  for (const char* function :
       {"cuModuleLoadData", "cuModuleGetFunction", "cuStreamCreateWithPriority", "cuEventCreate"}) {
    for (const std::uint64_t nth : {1U, 2U}) {
      doubled_.fail(function, nth, CuResult::kOutOfMemory);
      const auto opened = NvlinkTransport::Open(*gpus_, kSmallPieces);
      ASSERT_FALSE(opened.ok()) << function;
      EXPECT_VARYING_TEXT(opened.error().text());
      // Without kernels, whatever is said of loading them is the build's to remedy.
      const bool is_load = std::string_view(function) == "cuModuleLoadData";
      EXPECT_EQ(opened.error().code(),
                is_load && !HasKernels() ? Code::kUnavailable : Code::kExhausted);
    }
  }
  OpenLane();
  ASSERT_NO_FATAL_FAILURE(ExpectWorks(1));
}

TEST_F(NvlinkFailure, ToOpenNamesWhatIsWrongWithTheOptions) {
  Start(1);
  const auto text = [this](const NvlinkOptions& options) {
    const auto opened = NvlinkTransport::Open(*gpus_, options);
    return opened.ok() ? "ok" : opened.error().text();
  };
  EXPECT_EQ(text({.ctas = 0}), "0 blocks of threads: 1 to 1024 may run");
  EXPECT_EQ(text({.ctas = 1025}), "1025 blocks of threads: 1 to 1024 may run");
  EXPECT_EQ(text({.piece_size = 100}),
            "pieces of 100 bytes: a multiple of 128 up to 1073741824 is needed");
  EXPECT_EQ(text({.piece_size = std::size_t{2} << 30}),
            "pieces of 2147483648 bytes: a multiple of 128 up to 1073741824 is needed");
}

// More pieces than may be under way, of more transfers than one.
TEST_F(NvlinkFailure, IsNotToHaveMoreToDoThanAStreamTakes) {
  Start(2, {.ctas = 1, .piece_size = 1024});
  std::vector<std::byte*> memory;
  for (std::uint64_t token = 0; token < 10; ++token) {
    memory.push_back(OnesOn(token % 2));
    memory.push_back(OnesOn(1));
    const int device = static_cast<int>(token % 2);
    const std::vector<std::byte*> members(memory.end() - 2, memory.end());
    ASSERT_EQ(lane_->Post(SumOf(members, {device, 1}, token), MonotonicNow()),
              PostResult::kAccepted);
  }
  std::set<std::uint64_t> tokens;
  for (const Completion& completion : Collect(10)) {
    EXPECT_EQ(completion.code, Code::kOk) << completion.cause;
    EXPECT_TRUE(tokens.insert(completion.token).second);
  }
  for (const std::byte* member : memory) {
    ASSERT_EQ(Read<float>(member, kTenPieces), std::vector<float>(kTenPieces, 2.0F));
  }
  EXPECT_TRUE(lane_->PrepareToSleep());
}

TEST_F(NvlinkFailure, IsNotToSleepForLongWhileSomethingIsUnderWay) {
  Start(1);
  EXPECT_EQ(lane_->NextLook(), kNever);
  ASSERT_EQ(lane_->Post(SumOf({OnesOn(0), OnesOn(0)}, {0, 0}), MonotonicNow()),
            PostResult::kAccepted);
  EXPECT_LE(lane_->NextLook(), MonotonicNow());
  EXPECT_EQ(Collect(1)[0].code, Code::kOk);
  EXPECT_EQ(lane_->NextLook(), kNever);
}

TEST(KernelImage, IsWhatTheBuildMade) {
  std::uint32_t magic = 0;
  std::memcpy(&magic, KernelImage(), sizeof magic);
  EXPECT_EQ(magic == 0xba55ed50, HasKernels()) << "a fatbin's first bytes, or a text's";
}

}  // namespace
}  // namespace headrace::transport
