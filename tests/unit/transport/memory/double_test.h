// A test over a double of CUDA's driver, which fails when something is left behind.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ipc/base/fd.h"
#include "tests/support/cuda_double/doubled_driver.h"
#include "transport/memory/cuda_handles.h"

namespace headrace::transport {

inline constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

inline std::string TextOf(const Status& status) {
  return status.ok() ? "ok" : status.error().text();
}
template <typename Value>
std::string TextOf(const Result<Value>& result) {
  return result.ok() ? "ok" : result.error().text();
}

// The machine is that of the environment when Start is called.
class DoubleTest : public ::testing::Test {
 protected:
  void Start() {
    auto opened = cuda_double::OpenDouble();
    ASSERT_TRUE(opened.ok()) << opened.error().text();
    driver_ = std::move(*opened);
    for (int ordinal = 0; ordinal < driver_->devices_count(); ++ordinal) {
      auto context = RetainPrimaryContext(*driver_, ordinal);
      ASSERT_TRUE(context.ok()) << context.error().text();
      contexts_.push_back(std::move(*context));
    }
  }
  void TearDown() override {
    contexts_.clear();
    if (driver_) {
      EXPECT_EQ(driver_->releases_failed(), 0U);
    }
    const auto counts = cuda_double::CountsOf(doubled_);
    EXPECT_EQ(counts, std::vector<std::uint64_t>(counts.size(), 0)) << "something was left behind";
  }

  const CudaFunctions& call() const { return driver_->call(); }
  // The context of a GPU, current on this thread for as long as the result lives.
  CurrentContext In(std::size_t device = 0) const {
    return CurrentContext(*driver_, contexts_[device].get().context);
  }
  CudaDoubleCounts counts() const {
    CudaDoubleCounts counts{};
    doubled_.counts(&counts);
    return counts;
  }

  const cuda_double::Doubled doubled_ = cuda_double::LoadDouble();
  std::unique_ptr<CudaDriver> driver_;
  std::vector<PrimaryContext> contexts_;  // of all GPUs
};

// Page-aligned host memory of zeros, as a channel's is.
inline Mapping HostPages(std::size_t size) {
  auto mapping = Mapping::Anonymous(size);
  HR_CHECK(mapping.ok(), size);
  return std::move(*mapping);
}

}  // namespace headrace::transport
