#include "service/config/gpu_environment.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace headrace::service {
namespace {

using Variables = std::map<std::string, std::string>;

Result<Variables> Ask(const Config& config, Variables given) {
  return GpuEnvironment(config, [given = std::move(given)](const std::string& name) {
    const auto found = given.find(name);
    return found == given.end() ? std::nullopt : std::optional(found->second);
  });
}

void ExpectRefused(const Config& config, const Variables& given, const std::string& remedy) {
  const auto asked = Ask(config, given);
  ASSERT_FALSE(asked.ok());
  EXPECT_EQ(asked.error().code(), Code::kInvalidArgument);
  const std::string text = asked.error().text();
  EXPECT_NE(text.find(given.begin()->first + " is " + given.begin()->second), std::string::npos)
      << text;
  EXPECT_NE(text.find(remedy), std::string::npos) << text;
}

Config WithNccl() {
  Config config;
  config.gpu_network = GpuNetwork::kNccl;
  return config;
}

TEST(GpuEnvironment, GivesStreamsQueuesOfTheirOwn) {
  const auto asked = Ask(Config{}, {});
  ASSERT_TRUE(asked.ok());
  EXPECT_EQ(*asked, (Variables{{"CUDA_DEVICE_MAX_CONNECTIONS", "32"}}));
}

TEST(GpuEnvironment, IsEmptyWithoutGpus) {
  Config config = WithNccl();
  config.gpu = GpuUse::kOff;
  const auto asked = Ask(config, {{"NCCL_LAUNCH_ORDER_IMPLICIT", "1"}});
  ASSERT_TRUE(asked.ok());
  EXPECT_TRUE(asked->empty());
}

TEST(GpuEnvironment, LeavesFewerQueuesToWhoWantsThemButNotToNcclBetweenNodes) {
  const Variables few{{"CUDA_DEVICE_MAX_CONNECTIONS", "8"}};
  const auto asked = Ask(Config{}, few);
  ASSERT_TRUE(asked.ok());
  EXPECT_TRUE(asked->empty());
  ExpectRefused(WithNccl(), few, "set it to 32");
  EXPECT_TRUE(Ask(WithNccl(), {{"CUDA_DEVICE_MAX_CONNECTIONS", "32"}}).ok());
}

// NCCL's own file of settings must not bring back what the environment may not say.
TEST(GpuEnvironment, SetsWhatNcclWouldElseTakeFromItsFile) {
  const auto asked = Ask(WithNccl(), {{"NCCL_COMM_BLOCKING", "0"}});
  ASSERT_TRUE(asked.ok());
  EXPECT_EQ(*asked, (Variables{{"CUDA_DEVICE_MAX_CONNECTIONS", "32"},
                               {"NCCL_COMM_BLOCKING", "0"},
                               {"NCCL_LAUNCH_ORDER_IMPLICIT", "0"},
                               {"NCCL_MAX_CTAS", "16"}}));
}

TEST(GpuEnvironment, RefusesWhatWouldLetJobsWaitForEachOther) {
  ExpectRefused(WithNccl(), {{"NCCL_LAUNCH_ORDER_IMPLICIT", "1"}}, "unset it");
  ExpectRefused(WithNccl(), {{"NCCL_COMM_BLOCKING", "1"}}, "unset it");
  Config in_node;
  in_node.gpu_lane = GpuLaneKind::kNccl;
  ExpectRefused(in_node, {{"NCCL_LAUNCH_ORDER_IMPLICIT", "1"}}, "unset it");
}

TEST(GpuEnvironment, RefusesMoreBlocksOfThreadsThanTheServiceCountsWith) {
  ExpectRefused(WithNccl(), {{"NCCL_MAX_CTAS", "17"}}, "set gpu_ctas");
  ExpectRefused(WithNccl(), {{"NCCL_MIN_CTAS", "32"}}, "set gpu_ctas");
  ExpectRefused(WithNccl(), {{"NCCL_MIN_CTAS", "many"}}, "set gpu_ctas");
  EXPECT_TRUE(Ask(WithNccl(), {{"NCCL_MAX_CTAS", "8"}}).ok());
}

}  // namespace
}  // namespace headrace::service
