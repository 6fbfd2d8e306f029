// Tests that run once on every SIMD target of this machine.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "transport/reduce/reduce.h"
// Before Highway, so that its list of targets is the kernels'.
#include "transport/simd_targets.h"

#include "hwy/highway.h"

namespace headrace::transport {

// Highway's table of the targets it may choose is set per test and set back afterwards.
class SimdTargetTest : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { Choose(GetParam()); }
  void TearDown() override {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  static void Choose(std::int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    ASSERT_EQ(SimdTargetName(), hwy::TargetName(target));
  }
};

inline std::string SimdTargetOf(const ::testing::TestParamInfo<std::int64_t>& info) {
  return hwy::TargetName(info.param);
}

}  // namespace headrace::transport
