// The codecs of GPUs on a double of CUDA's driver: on their own, and of nodes that exchange.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "tests/unit/transport/exchange_fleet.h"
#include "tests/unit/transport/nvlink/lane_of_gpus.h"
#include "transport/memory/pinned_memory.h"
#include "transport/nvlink/gpu_codec.h"

namespace headrace::transport {

// One codec over two GPUs.
class CodecOfGpus : public LaneOfGpus {
 protected:
  void SetUp() override {
    Start(2);
    if (HasFatalFailure()) return;
    auto codec = GpuCodec::Open(*gpus_, 2);
    ASSERT_TRUE(codec.ok()) << codec.error().text();
    codec_ = std::move(*codec);
  }
  void TearDown() override {
    codec_.reset();
    LaneOfGpus::TearDown();
  }
  // How all that was started there has ended.
  Status Wait(std::int8_t device) {
    const std::uint64_t ticket = codec_->TicketOf(device);
    for (;;) {
      codec_->Poll();
      if (auto ended = codec_->Ended(device, ticket)) return *ended;
      std::this_thread::yield();
    }
  }

  std::unique_ptr<GpuCodec> codec_;
};

// A codec over the same two GPUs for each node of a fleet.
class CodecsOfNodes : public LaneOfGpus {
 protected:
  static constexpr std::size_t kNodesMax = 5;

  void SetUp() override {
    Start(2);
    while (codecs_.size() < kNodesMax && !HasFatalFailure()) {
      auto codec = GpuCodec::Open(*gpus_, 2);
      ASSERT_TRUE(codec.ok()) << codec.error().text();
      codecs_.push_back(std::move(*codec));
    }
  }
  void TearDown() override {
    codecs_.clear();
    LaneOfGpus::TearDown();
  }
  // `Case` has nodes, servers and an algorithm.
  template <typename Case>
  FleetOptions OptionsOf(const Case& test) {
    return {.data_count = test.nodes,
            .servers_count = test.servers,
            .algorithm = test.algorithm,
            .device_codecs = codecs_,
            .pin = [this](std::span<std::byte> memory) -> Result<std::byte*> {
              auto pinned = PinnedRange::Pin(*gpus_, memory);
              if (!pinned) return pinned.error();
              std::byte* const on_gpus = pinned->on_gpus();
              pins_.emplace(memory.data(), std::move(*pinned));
              return on_gpus;
            },
            .unpin = [this](std::span<std::byte> memory) { pins_.erase(memory.data()); }};
  }

  std::vector<std::shared_ptr<DeviceCodec>> codecs_;
  std::map<std::byte*, PinnedRange> pins_;  // staging
};

}  // namespace headrace::transport
