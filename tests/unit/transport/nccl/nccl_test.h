// A test over the doubles of CUDA's driver and of NCCL, which fails when something is left behind.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/cuda_double/doubled_driver.h"
#include "tests/support/device_memory.h"
#include "tests/support/nccl_double/doubled_nccl.h"
#include "transport/memory/gpus.h"
#include "transport/transport.h"

namespace headrace::transport {

// Memory of a GPU of the double, which is the host's as well.
template <typename Element>
class GpuArray {
 public:
  GpuArray(const Gpus& gpus, std::int8_t device, const std::vector<Element>& elements)
      : device_(device), count_(elements.size()) {
    auto made = AllocateDeviceMemory(gpus.context(device), (count_ + 1) * sizeof(Element));
    HR_CHECK(made.ok(), made.error().text());
    memory_ = std::move(*made);
    std::memcpy(bytes(), elements.data(), count_ * sizeof(Element));
  }

  std::int8_t device() const { return device_; }
  std::byte* bytes() const { return reinterpret_cast<std::byte*>(memory_.get().thing); }
  std::vector<Element> elements() const {
    std::vector<Element> copy(count_);
    std::memcpy(copy.data(), bytes(), count_ * sizeof(Element));
    return copy;
  }

 private:
  std::int8_t device_;
  std::size_t count_;
  DeviceMemory memory_;
};

// Host memory that is pinned for all GPUs.
class PinnedPages {
 public:
  PinnedPages(const Gpus& gpus, std::size_t size) {
    auto pages = Mapping::Anonymous((size / 4096 + 1) * 4096);
    HR_CHECK(pages.ok(), size);
    pages_ = std::move(*pages);
    auto pinned = RegisterHostMemory(gpus.context(0), pages_.data(), pages_.size());
    HR_CHECK(pinned.ok(), pinned.error().text());
    registration_ = std::move(*pinned);
  }
  std::byte* bytes() const { return pages_.data(); }

 private:
  Mapping pages_;
  HostRegistration registration_;
};

class NcclTest : public ::testing::Test {
 protected:
  void Start(int devices_count) {
    const cuda_double::Environment machine({{"DEVICES", std::to_string(devices_count)}});
    ASSERT_EQ(cuda_.restart(), 1) << "a test before this one left something behind";
    auto opened = Gpus::Open(cuda_double::LibraryPath());
    ASSERT_TRUE(opened.ok()) << opened.error().text();
    gpus_ = std::move(*opened);
  }

  void TearDown() override {
    nccl_.fail(nullptr, 0, 0);
    // Threads that end ranks in the background, and hubs, are gone a moment later at the latest.
    for (int i = 0; i < 10'000'000 && SomethingIsLeft(); ++i) std::this_thread::yield();
    const NcclDoubleCounts left = nccl_.Counts();
    EXPECT_EQ(left.ranks, 0U);
    EXPECT_EQ(left.reductions, 0U);
    EXPECT_GE(left.hubs + ids_perhaps_abandoned_before_, hubs_before_ + ids_abandoned_);
    ids_perhaps_abandoned_before_ += ids_perhaps_abandoned_;
    EXPECT_LE(left.hubs, HubsLeft());
    if (gpus_) {
      EXPECT_EQ(gpus_->driver().releases_failed(), 0U);
    }
    gpus_.reset();
    const auto counts = cuda_double::CountsOf(cuda_);
    EXPECT_EQ(counts, std::vector<std::uint64_t>(counts.size(), 0)) << "something was left behind";
  }

  // Steps until one completion came.
  static Completion Await(Transport& transport) {
    std::vector<Completion> completions;
    while (completions.empty()) {
      transport.DoWork(MonotonicNow(), completions);
      std::this_thread::yield();
    }
    return completions.front();
  }
  static Completion Run(Transport& transport, const Transfer& transfer) {
    HR_CHECK(transport.Post(transfer, MonotonicNow()) == PostResult::kAccepted, transfer.token);
    return Await(transport);
  }

  const cuda_double::Doubled cuda_ = cuda_double::LoadDouble();
  const nccl_double::DoubledNccl nccl_ = nccl_double::LoadDouble();
  std::unique_ptr<Gpus> gpus_;
  // Ids that nobody came to stay, as with NCCL.
  std::uint64_t ids_abandoned_ = 0;
  // Ids whose ranks may have been aborted before they came to them.
  std::uint64_t ids_perhaps_abandoned_ = 0;

 private:
  bool SomethingIsLeft() const {
    const NcclDoubleCounts now = nccl_.Counts();
    return now.ranks != 0 || now.hubs > HubsLeft();
  }
  std::uint64_t HubsLeft() const { return hubs_before_ + ids_abandoned_ + ids_perhaps_abandoned_; }

  std::uint64_t hubs_before_ = nccl_.Counts().hubs;
  // By tests before this one: their hubs may still go.
  static inline std::uint64_t ids_perhaps_abandoned_before_ = 0;
};

}  // namespace headrace::transport
