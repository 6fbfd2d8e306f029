#include "client/cli/replay/profile.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "ipc/layout_limits.h"
#include "tests/support/profile_json.h"

namespace headrace::replay {
namespace {

const Tensor kTensor{"conv.weight", 100, 0.5, 0.25};

Profile ProfileOf(std::vector<Tensor> tensors, DType dtype = DType::kBFloat16) {
  return {"toy", dtype, std::move(tensors)};
}

std::string Refused(Profile profile, double scale = 1) {
  const Result<Profile> replayable = Replayable(std::move(profile), scale);
  if (replayable.ok()) return "accepted";
  EXPECT_EQ(replayable.error().code(), Code::kInvalidArgument);
  return replayable.error().text();
}

TEST(Profile, HasTensorsInForwardOrderWithScaledTimes) {
  const Result<Profile> profile = Replayable(ProfileOf({kTensor, {"b", 1, 0, 1e-9}}), 2);
  ASSERT_TRUE(profile.ok()) << profile.error().text();
  EXPECT_EQ(profile->model, "toy");
  EXPECT_EQ(profile->dtype, DType::kBFloat16);
  ASSERT_EQ(profile->tensors.size(), 2U);
  EXPECT_EQ(profile->tensors[0].name, "conv.weight");
  EXPECT_EQ(profile->tensors[0].elements, 100U);
  EXPECT_EQ(Nanoseconds(profile->tensors[0].backward_s), kSecond);
  EXPECT_EQ(Nanoseconds(profile->tensors[0].forward_s), kSecond / 2);
  EXPECT_EQ(Nanoseconds(profile->tensors[1].forward_s), 2);
  EXPECT_EQ(profile->bytes(), 202U);
}

TEST(Profile, RefusesGradientsThatAreNoFloatingPointNumbers) {
  for (std::uint8_t number = 1; IsDType(number); ++number) {
    const auto dtype = static_cast<DType>(number);
    const bool is_float = dtype == DType::kFloat32 || dtype == DType::kFloat64 ||
                          dtype == DType::kFloat16 || dtype == DType::kBFloat16;
    EXPECT_EQ(Refused(ProfileOf({kTensor}, dtype)) == "accepted", is_float) << Name(dtype);
  }
}

TEST(Profile, KeepsToWhatAServiceAndAMachineHold) {
  EXPECT_EQ(Refused(ProfileOf(std::vector(ipc::kLayoutTensorsMax, Tensor{"", 1, 0, 0}))),
            "accepted");
  EXPECT_NE(Refused(ProfileOf(std::vector(ipc::kLayoutTensorsMax + 1, Tensor{"", 1, 0, 0}))),
            "accepted");
  const Tensor huge{"", std::uint64_t{1} << 37, 0, 0};
  EXPECT_EQ(Refused(ProfileOf({huge})), "accepted");
  EXPECT_TRUE(Refused(ProfileOf({huge, kTensor})).starts_with("tensors[1].elements: "));
  const Tensor slow{"", 1, 2000, 1000};
  EXPECT_EQ(Refused(ProfileOf({slow})), "accepted");
  EXPECT_TRUE(Refused(ProfileOf({slow, slow})).starts_with("tensors[1]: "));
  EXPECT_TRUE(Refused(ProfileOf({slow}), 2).starts_with("tensors[0]: "));
  EXPECT_TRUE(Refused(ProfileOf({kTensor}), std::nan("")).starts_with("tensors[0]: "));
}

TEST(Profile, IsReadFromAFileThatErrorsName) {
  const std::string path =
      testing::TempDir() + "replay-profile-" + std::to_string(::getpid()) + ".json";
  EXPECT_NE(ReadReplayable(path, 1).error().text().find(path + ": No such file"),
            std::string::npos);
  std::ofstream(path) << "{}";
  EXPECT_TRUE(ReadReplayable(path, 1).error().text().starts_with(path + ": profile: "));
  std::ofstream(path) << plan::ProfileJson(ProfileOf({kTensor}, DType::kInt32));
  EXPECT_TRUE(ReadReplayable(path, 1).error().text().starts_with("profile " + path + ": dtype"));
  std::ofstream(path) << plan::ProfileJson(ProfileOf({kTensor}));
  EXPECT_EQ(ReadReplayable(path, 1)->tensors, std::vector{kTensor});
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace headrace::replay
