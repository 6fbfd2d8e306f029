// Sums that the switch between GPUs makes, on the double's switch, which adds in another order than
// ours. Values are small whole numbers, so that every order gives the same bits.
#include <algorithm>
#include <utility>

#include "tests/unit/transport/nvlink/lane_of_gpus.h"
#include "transport/memory/device_arena.h"

namespace headrace::transport {
namespace {

constexpr std::uint64_t kArenaSize = std::uint64_t{4} << 20;

class NvlinkMulticast : public LaneOfGpus {
 protected:
  // `able` GPUs, from the first on, can take part in multicast.
  void Start(int gpus_count, int able) {
    const cuda_double::Environment machine(
        {{"DEVICES", std::to_string(gpus_count)}, {"MULTICAST", std::to_string(able)}});
    OpenGpus();
    if (HasFatalFailure()) return;
    OpenLane(WithMulticast());
    for (int device = 0; device < gpus_count; ++device) imports_.push_back(Import(device));
  }
  NvlinkOptions WithMulticast() {
    NvlinkOptions options = kSmallPieces;
    options.multicast = true;
    options.on_no_multicast = [this](const std::string& reason) {
      ++told_count_;
      told_ = reason;
    };
    return options;
  }
  void TearDown() override {
    lane_.reset();
    imports_.clear();
    if (gpus_) {
      EXPECT_EQ(gpus_->driver().releases_failed(), 0U);
    }
    LaneOfGpus::TearDown();
  }

  // As a trainer's arena comes in.
  DeviceImport Import(CuDevice device) {
    auto arena = DeviceArena::Allocate(gpus_->driver(), device, kArenaSize);
    HR_CHECK(arena.ok(), arena.error().text());
    auto grant = arena->Grant();
    HR_CHECK(grant.ok(), grant.error().text());
    auto import = gpus_->Import(grant->handle, grant->fds);
    HR_CHECK(import.ok(), import.error().text());
    return std::move(*import);
  }

  template <typename Element>
  Element* At(std::size_t member, std::size_t offset) {
    return reinterpret_cast<Element*>(imports_[member].address() + offset);
  }

  // Member i has `first` + i + k % 5 at element k, from `offset` of its arena on.
  Transfer AllReduce(std::uint64_t count, std::size_t offset, DType dtype = DType::kFloat32) {
    Transfer transfer{
        .token = ++token_, .kind = Collective::kAllReduce, .dtype = dtype, .count = count};
    for (const DeviceImport& import : imports_) {
      const std::size_t member = transfer.members_count++;
      transfer.devices[member] = static_cast<std::int8_t>(import.device());
      transfer.members[member] = At<std::byte>(member, offset);
    }
    return transfer;
  }
  void Fill(const Transfer& transfer) {
    for (std::uint32_t member = 0; member < transfer.members_count; ++member) {
      for (std::uint64_t k = 0; k < transfer.count; ++k) {
        reinterpret_cast<float*>(transfer.members[member])[k] =
            static_cast<float>(member + 1 + k % 5);
      }
    }
  }
  // The sum over 3 members.
  static float SumAt(std::uint64_t k) { return static_cast<float>(6 + 3 * (k % 5)); }

  void Run(const Transfer& transfer) {
    const Completion completion = Finish(transfer);
    ASSERT_EQ(completion.code, Code::kOk) << completion.cause;
  }
  // Runs transfers of this memory until it is decided whether it can be bound.
  void UntilDecided(std::size_t bindings = 1) {
    const Transfer transfer = AllReduce(64, 0);
    for (int i = 0; i < 1'000'000; ++i) {
      Run(transfer);
      if (!lane_->multicast_reason().empty()) return;
      if (gpus_->multicast().bound_count() == bindings) return;
      std::this_thread::yield();
    }
    FAIL() << "nothing was bound, and nobody said why";
  }

  std::vector<DeviceImport> imports_;
  std::uint64_t token_ = 0;
  // Written before the lane knows the reason, read after.
  std::string told_;
  int told_count_ = 0;
};

TEST_F(NvlinkMulticast, SumsBySwitchOnceMemoryIsBoundAndByKernelsBefore) {
  Start(3, 3);
  Transfer transfer = AllReduce(1000, 0);
  Fill(transfer);
  Run(transfer);
  EXPECT_EQ(lane_->switched_count(), 0U);
  EXPECT_EQ(At<float>(2, 0)[999], SumAt(999));
  UntilDecided();
  EXPECT_EQ(lane_->multicast_reason(), "");
  const std::uint64_t before = lane_->switched_count();
  // Many pieces; from an odd place to an odd place, so that ends are no full units.
  for (const std::uint64_t count : {1U, 3U, 4U, 1001U, 30'011U}) {
    for (const std::size_t offset : {0U, 4U, 4096U + 12U}) {
      transfer = AllReduce(count, offset);
      Fill(transfer);
      const float guard = At<float>(1, offset)[count] = 77;
      Run(transfer);
      for (std::size_t member = 0; member < 3; ++member) {
        for (std::uint64_t k = 0; k < count; ++k) {
          ASSERT_EQ(At<float>(member, offset)[k], SumAt(k)) << member << " " << k;
        }
      }
      ASSERT_EQ(At<float>(1, offset)[count], guard);
    }
  }
  EXPECT_EQ(lane_->switched_count() - before, 15U);
}

TEST_F(NvlinkMulticast, DividesAveragesAndTakesHalves) {
  Start(2, 2);
  UntilDecided();
  const std::uint64_t before = lane_->switched_count();
  Transfer transfer = AllReduce(100, 16);
  Fill(transfer);
  transfer.reduction = Reduction::kAverage;
  Run(transfer);
  EXPECT_EQ(At<float>(0, 16)[7], (1 + 2 + 2 + 2) / 2.0F);
  Fill(transfer);
  transfer.token = ++token_;
  transfer.divisor = 8;
  Run(transfer);
  EXPECT_EQ(At<float>(1, 16)[7], (1 + 2 + 2 + 2) / 8.0F);
  // 1.0 and 2.0 in float16 and in bfloat16; 3.0.
  const std::uint16_t values[2][3] = {{0x3C00, 0x4000, 0x4200}, {0x3F80, 0x4000, 0x4040}};
  for (const int kind : {0, 1}) {
    transfer = AllReduce(999, 32, kind == 0 ? DType::kFloat16 : DType::kBFloat16);
    for (std::size_t member = 0; member < 2; ++member) {
      std::fill_n(At<std::uint16_t>(member, 32), 999, values[kind][member]);
    }
    Run(transfer);
    EXPECT_EQ(At<std::uint16_t>(0, 32)[0], values[kind][2]);
    EXPECT_EQ(At<std::uint16_t>(1, 32)[998], values[kind][2]);
  }
  EXPECT_EQ(lane_->switched_count() - before, 4U);
}

TEST_F(NvlinkMulticast, WritesPartsAndOutputsWhereTheyBelong) {
  Start(2, 2);
  UntilDecided();
  const std::uint64_t before = lane_->switched_count();
  Transfer transfer = AllReduce(2000, 0);
  Fill(transfer);
  transfer.kind = Collective::kReduceScatter;
  Run(transfer);
  EXPECT_EQ(At<float>(0, 0)[3], 1 + 3 + 2 + 3);
  EXPECT_EQ(At<float>(0, 0)[1003], 1 + 3) << "the other's part keeps its values";
  EXPECT_EQ(At<float>(1, 0)[1003], 1 + 3 + 2 + 3);
  auto* const host = OnHost(2000 * sizeof(float));
  transfer = AllReduce(2000, 0);
  Fill(transfer);
  transfer.kind = Collective::kReduce;
  transfer.output = host;
  Run(transfer);
  EXPECT_EQ(Read<float>(host, 2000)[1999], 1 + 4 + 2 + 4);
  EXPECT_EQ(At<float>(0, 0)[1999], 1 + 4);
  EXPECT_EQ(lane_->switched_count() - before, 2U);
}

TEST_F(NvlinkMulticast, LeavesToKernelsWhatTheSwitchCannotSum) {
  Start(3, 3);
  UntilDecided();
  const std::uint64_t before = lane_->switched_count();
  Transfer least = AllReduce(100, 0);
  Fill(least);
  least.reduction = Reduction::kMin;
  Run(least);
  EXPECT_EQ(At<float>(2, 0)[4], 1 + 4);

  // Laid out differently, and beyond what is bound.
  Transfer apart = AllReduce(100, 0);
  apart.members[1] += 64;
  Fill(apart);
  Run(apart);
  EXPECT_EQ(At<float>(1, 64)[99], SumAt(99));

  // A part of the GPUs has a binding of its own.
  Transfer some = AllReduce(100, 0);
  some.members_count = 2;
  Fill(some);
  Run(some);
  EXPECT_EQ(At<float>(1, 0)[5], 1 + 2);

  Transfer twice = AllReduce(100, 0);
  twice.devices[2] = twice.devices[0];
  twice.members[2] = At<std::byte>(0, 8192);
  Fill(twice);
  Run(twice);
  EXPECT_EQ(At<float>(0, 8192)[0], SumAt(0));

  Transfer whole = AllReduce(100, 0, DType::kInt32);
  std::fill_n(At<std::int32_t>(0, 0), 100, 5);
  std::fill_n(At<std::int32_t>(1, 0), 100, -7);
  std::fill_n(At<std::int32_t>(2, 0), 100, 1);
  Run(whole);
  EXPECT_EQ(At<std::int32_t>(1, 0)[50], -1);
  EXPECT_EQ(lane_->switched_count(), before);
}

TEST_F(NvlinkMulticast, LetsMemoryGoWithItsMapping) {
  Start(2, 2);
  UntilDecided();
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(gpus_->multicast().bound_count(), 1U);
    imports_.pop_back();
    ASSERT_EQ(gpus_->multicast().bound_count(), 0U);
    imports_.push_back(Import(1));
    ASSERT_NO_FATAL_FAILURE(UntilDecided());
    ASSERT_EQ(lane_->multicast_reason(), "");
  }
  imports_.clear();
  EXPECT_EQ(gpus_->multicast().bound_count(), 0U);
  CudaDoubleCounts counts{};
  doubled_.counts(&counts);
  EXPECT_EQ(counts.memory_handles + counts.mappings + counts.reservations, 0U);
}

TEST_F(NvlinkMulticast, SaysWhyMemoryCannotBeBoundAndSumsAllTheSame) {
  struct Refusal {
    const char* function;
    std::uint64_t nth;  // call from the import on
    const char* words;
  };
  for (const Refusal& refusal :
       {Refusal{"cuMulticastGetGranularity", 1, "in what steps"},
        Refusal{"cuMulticastCreate", 1, "make a multicast object"},
        Refusal{"cuMulticastAddDevice", 2, "add GPU 1 to a multicast object"},
        Refusal{"cuMulticastBindAddr", 1, "bind memory of GPU 0"},
        Refusal{"cuMulticastBindAddr", 2, "bind memory of GPU 1"},
        Refusal{"cuMemAddressReserve", 1, "reserve"}, Refusal{"cuMemMap", 1, "map"},
        Refusal{"cuMemSetAccess", 1, "let GPUs access a multicast address"}}) {
    SCOPED_TRACE(refusal.function);
    const cuda_double::Environment machine({{"DEVICES", "2"}, {"MULTICAST", "2"}});
    OpenGpus();
    OpenLane(WithMulticast());
    for (const int device : {0, 1}) imports_.push_back(Import(device));
    doubled_.fail(refusal.function, refusal.nth, CuResult::kNotSupported);
    ASSERT_NO_FATAL_FAILURE(UntilDecided());
    EXPECT_NE(lane_->multicast_reason().find(refusal.words), std::string::npos)
        << lane_->multicast_reason();
    const Transfer transfer = AllReduce(100, 0);
    Fill(transfer);
    Run(transfer);
    EXPECT_EQ(At<float>(0, 0)[0], 1 + 2);
    EXPECT_EQ(lane_->switched_count(), 0U);
    EXPECT_EQ(told_, lane_->multicast_reason());
    EXPECT_EQ(std::exchange(told_count_, 0), 1);
    NvlinkMulticast::TearDown();
  }
}

TEST_F(NvlinkMulticast, NeedsASwitchAndSaysSo) {
  Start(2, 1);
  EXPECT_EQ(lane_->multicast_reason(),
            "1 of 2 GPUs can take part in multicast: it needs NVSwitch and two of them at the "
            "least");
  EXPECT_EQ(told_, lane_->multicast_reason());
  const Transfer transfer = AllReduce(100, 0);
  Fill(transfer);
  Run(transfer);
  EXPECT_EQ(At<float>(0, 0)[0], 1 + 2);
  EXPECT_EQ(lane_->switched_count(), 0U);
}

TEST_F(NvlinkMulticast, RefusesGpusThatAreNotBehindTheSwitch) {
  Start(3, 2);
  EXPECT_EQ(lane_->multicast_reason(), "");
  UntilDecided();
  EXPECT_EQ(lane_->multicast_reason(), "GPU 2 cannot take part in multicast");
}

}  // namespace
}  // namespace headrace::transport
