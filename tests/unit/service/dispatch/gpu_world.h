// Hand-driven nodes with GPUs that the driver's double plays.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/support/cuda_double/doubled_driver.h"
#include "tests/support/hand_driven_node.h"
#include "tests/unit/service/dispatch/expect.h"
#include "transport/memory/gpus.h"

namespace headrace::support {

// Fails when something is left behind. What is built on the GPUs belongs into members of the test.
class GpuTest : public ::testing::Test {
 protected:
  GpuTest() {
    HR_CHECK(doubled_.restart() == 1, "a test before this one left something behind");
    gpus_ = transport::Gpus::Open(cuda_double::LibraryPath()).value();
  }
  ~GpuTest() override {
    EXPECT_EQ(gpus_->driver().releases_failed(), 0U);
    gpus_.reset();
    const auto counts = cuda_double::CountsOf(doubled_);
    EXPECT_EQ(counts, std::vector<std::uint64_t>(counts.size(), 0)) << "something was left behind";
  }

  const cuda_double::Doubled doubled_ = cuda_double::LoadDouble();
  std::unique_ptr<transport::Gpus> gpus_;
};

inline ipc::Record Awaiting(ipc::Record record) {
  record.flags |= ipc::kRecordAwaitsWord;
  return record;
}

// What the rank's GPU does when it has come so far.
inline void WriteReadyWord(const ClientEnd& client, std::uint64_t record) {
  client.layout().ready[record % ipc::kOperationsMax].store(record, std::memory_order_release);
}

}  // namespace headrace::support
