// The measurement of a GPU's codecs, on a double of CUDA's driver.
#include "transport/nvlink/gpu_codec_probe.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>

#include "tests/unit/transport/nvlink/codecs_of_gpus.h"

namespace headrace::transport {
namespace {

using GpuCodecProbe = CodecOfGpus;

TEST_F(GpuCodecProbe, MeasuresEachCodecThatTheGpuHas) {
  const auto costs = MeasureGpuCodecs(*gpus_, *codec_);
  ASSERT_TRUE(costs.ok()) << costs.error().text();
  EXPECT_EQ(costs->size(), static_cast<std::size_t>(std::popcount(codec_->codecs())));
  for (const CodecCost& cost : *costs) {
    EXPECT_GT(cost.encode_s_per_byte, 0);
    EXPECT_GT(cost.decode_s_per_byte, 0);
  }
}

// What was launched before is at work on memory of the measurement's, which goes with it.
TEST_F(GpuCodecProbe, WaitsForItsGpuWhereALaunchIsRefused) {
  for (std::uint64_t nth = 1; nth <= 40; ++nth) {
    doubled_.fail("cuLaunchKernel", nth, CuResult::kOutOfMemory);
    const auto costs = MeasureGpuCodecs(*gpus_, *codec_);
    ASSERT_FALSE(costs.ok()) << nth;
    EXPECT_EQ(costs.error().code(), Code::kExhausted) << costs.error().text();
    const Status ended = Wait(0);
    ASSERT_TRUE(ended.ok()) << nth << ": " << ended.error().text();
  }
}

}  // namespace
}  // namespace headrace::transport
