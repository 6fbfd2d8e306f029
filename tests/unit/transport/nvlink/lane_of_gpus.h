// The lane between GPUs on a double of CUDA's driver: a fixture that fails when something is left
// behind.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/cuda_double/doubled_driver.h"
#include "tests/support/device_memory.h"
#include "transport/memory/gpus.h"
#include "transport/nvlink/nvlink_transport.h"

namespace headrace::transport {

// Small pieces, so that transfers are cut; few threads, so that each has several units.
inline const NvlinkOptions kSmallPieces{.ctas = 1, .piece_size = std::size_t{16} << 10};

class LaneOfGpus : public ::testing::Test {
 protected:
  // The machine is that of the environment now.
  void OpenGpus() {
    ASSERT_EQ(doubled_.restart(), 1);
    auto gpus = Gpus::Open(cuda_double::LibraryPath());
    ASSERT_TRUE(gpus.ok()) << gpus.error().text();
    gpus_ = std::move(*gpus);
  }
  void OpenLane(const NvlinkOptions& options = kSmallPieces) {
    auto lane = NvlinkTransport::Open(*gpus_, options);
    ASSERT_TRUE(lane.ok()) << lane.error().text();
    lane_ = std::move(*lane);
  }
  void Start(int gpus_count, const NvlinkOptions& options = kSmallPieces) {
    const cuda_double::Environment machine({{"DEVICES", std::to_string(gpus_count)}});
    OpenGpus();
    if (!HasFatalFailure()) OpenLane(options);
  }
  void TearDown() override {
    lane_.reset();
    FreeMemory();
    gpus_.reset();
    const auto counts = cuda_double::CountsOf(doubled_);
    EXPECT_EQ(counts, std::vector<std::uint64_t>(counts.size(), 0)) << "something was left behind";
  }

  // All that the test has had, which nothing uses any more.
  void FreeMemory() {
    memory_.clear();
    pinned_.clear();
  }

  // Memory of a GPU, mapped for all; `elements` in it, `shift` bytes behind a unit's begin.
  template <typename Element>
  std::byte* OnGpu(std::size_t device, const std::vector<Element>& elements,
                   std::size_t shift = 0) {
    auto made = AllocateDeviceMemory(gpus_->contexts()[device],
                                     elements.size() * sizeof(Element) + shift + 1);
    EXPECT_TRUE(made.ok());
    const CuAddress at = made->get().thing + shift;
    memory_.push_back(std::move(*made));
    Reach(device);
    // The double's memory is the host's, which spares copies.
    auto* const memory = reinterpret_cast<std::byte*>(at);
    std::memcpy(memory, elements.data(), elements.size() * sizeof(Element));
    return memory;
  }
  // Host memory that is pinned for all GPUs, `shift` bytes behind a page's begin.
  std::byte* OnHost(std::size_t size, std::size_t shift = 0) {
    constexpr std::size_t kPage = 4096;
    auto pages = Mapping::Anonymous((size + shift) / kPage * kPage + kPage);
    EXPECT_TRUE(pages.ok());
    auto registration = RegisterHostMemory(gpus_->contexts()[0], pages->data(), pages->size());
    EXPECT_TRUE(registration.ok());
    pinned_.push_back({std::move(*pages), std::move(*registration)});
    return pinned_.back().pages.data() + shift;
  }
  template <typename Element>
  static std::vector<Element> Read(const std::byte* memory, std::size_t count) {
    std::vector<Element> elements(count);
    std::memcpy(elements.data(), memory, count * sizeof(Element));
    return elements;
  }

  std::vector<Completion> Collect(std::size_t count) {
    std::vector<Completion> completions;
    while (completions.size() < count) {
      const bool spins = lane_->DoWork(MonotonicNow(), completions);
      EXPECT_EQ(spins || lane_->NextLook() != kNever, completions.size() != count || spins);
      std::this_thread::yield();
    }
    return completions;
  }
  Completion Finish(const Transfer& transfer) {
    EXPECT_EQ(lane_->Post(transfer, MonotonicNow()), PostResult::kAccepted);
    return Collect(1).front();
  }

  const cuda_double::Doubled doubled_ = cuda_double::LoadDouble();
  std::unique_ptr<Gpus> gpus_;
  std::unique_ptr<NvlinkTransport> lane_;

 private:
  struct Pinned {
    Mapping pages;
    HostRegistration registration;
  };

  // Legacy memory is reached context by context.
  void Reach(std::size_t device) {
    for (std::size_t user = 0; user < gpus_->count(); ++user) {
      if (user == device) continue;
      const CurrentContext current(gpus_->driver(), gpus_->contexts()[user].get().context);
      (void)gpus_->driver().call().ctx_enable_peer_access(gpus_->contexts()[device].get().context,
                                                          0);
    }
  }

  std::vector<DeviceMemory> memory_;
  std::vector<Pinned> pinned_;
};

}  // namespace headrace::transport
