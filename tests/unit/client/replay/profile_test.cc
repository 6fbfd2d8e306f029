#include "client/cli/replay/profile.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace headrace::replay {
namespace {

std::string File(const std::string& tensors, const std::string& more = "") {
  return R"({"format": "headrace-profile/1", "model": "toy", "dtype": "bfloat16", )" + more +
         R"("tensors": [)" + tensors + "]}";
}

constexpr const char* kTensor =
    R"({"name": "conv.weight", "elements": 100, "backward_s": 0.5, "forward_s": 0.25})";

std::string Refused(const std::string& text) {
  const Result<Profile> profile = ParseProfile(text, 1);
  if (profile.ok()) return "it was taken";
  EXPECT_EQ(profile.error().code(), Code::kInvalidArgument);
  return profile.error().text();
}

TEST(Profile, HasTensorsInForwardOrderWithScaledTimes) {
  const Result<Profile> profile =
      ParseProfile(File(std::string(kTensor) +
                            R"(, {"name": "b", "elements": 1, "backward_s": 0, "forward_s": 1e-9})",
                        R"("machine": {"cores": [1, 2]}, )"),
                   2);
  ASSERT_TRUE(profile.ok()) << profile.error().text();
  EXPECT_EQ(profile->model, "toy");
  EXPECT_EQ(profile->dtype, DType::kBFloat16);
  ASSERT_EQ(profile->tensors.size(), 2U);
  EXPECT_EQ(profile->tensors[0].name, "conv.weight");
  EXPECT_EQ(profile->tensors[0].elements, 100U);
  EXPECT_EQ(profile->tensors[0].backward_ns, kSecond);
  EXPECT_EQ(profile->tensors[0].forward_ns, kSecond / 2);
  EXPECT_EQ(profile->tensors[1].forward_ns, 2);
  EXPECT_EQ(profile->bytes(), 202U);
}

TEST(Profile, NamesTheFieldThatIsWrong) {
  EXPECT_NE(Refused("{").find("this is not JSON"), std::string::npos);
  EXPECT_EQ(Refused("[]"), "a profile must be an object");
  EXPECT_EQ(Refused("{}"), "format is missing");
  EXPECT_EQ(Refused(R"({"format": "headrace-profile/2"})"),
            "format \"headrace-profile/2\" is not headrace-profile/1");
  EXPECT_EQ(Refused(R"({"format": "headrace-profile/1"})"), "tensors must be an array");
  EXPECT_NE(Refused(File("")).find("there are 0 tensors"), std::string::npos);
  EXPECT_EQ(Refused(File("3")), "tensors[0] must be an object");
  EXPECT_EQ(Refused(File(R"({"name": 1})")), "tensors[0].name must be a string");
  EXPECT_EQ(Refused(File(R"({"name": ""})")), "tensors[0].elements is missing");
  for (const char* elements : {"0", "-1", "1.5", "\"1\"", "1e30"}) {
    const std::string text =
        Refused(File(std::string(kTensor) + R"(, {"name": "", "elements": )" + elements + "}"));
    EXPECT_NE(text.find("tensors[1].elements is "), std::string::npos) << text;
  }
  for (const char* time : {"-0.1", "1e300", "3601"}) {
    const std::string text =
        Refused(File(R"({"name": "", "elements": 1, "backward_s": )" + std::string(time) + "}"));
    EXPECT_NE(text.find("tensors[0].backward_s is "), std::string::npos) << text;
  }
  EXPECT_EQ(Refused(File(R"({"name": "", "elements": 1, "backward_s": 0, "forward_s": "1"})")),
            "tensors[0].forward_s must be a number of seconds");
}

TEST(Profile, RefusesGradientsThatAreNoFloatingPointNumbers) {
  EXPECT_NE(Refused(R"({"format": "headrace-profile/1", "dtype": "int32"})").find("int32"),
            std::string::npos);
}

TEST(Profile, KeepsToWhatAServiceAndAMachineHold) {
  std::string many = kTensor;
  for (std::size_t i = 0; i < kTensorsMax; ++i) many += std::string(", ") + kTensor;
  EXPECT_NE(Refused(File(many)).find("769 tensors: a job has 1 to 768"), std::string::npos);
  const std::string huge =
      R"({"name": "", "elements": 137438953472, "backward_s": 0, "forward_s": 0})";  // 2^37
  EXPECT_TRUE(ParseProfile(File(huge), 1).ok());
  EXPECT_NE(Refused(File(huge + ", " + kTensor)).find("tensors[1].elements: the gradients exceed"),
            std::string::npos);
  const std::string slow = R"({"name": "", "elements": 1, "backward_s": 2000, "forward_s": 1000})";
  EXPECT_NE(Refused(File(slow + ", " + slow)).find("tensors[1]: an iteration takes more than"),
            std::string::npos);
}

TEST(Profile, IsReadFromAFileThatErrorsName) {
  const std::string path =
      testing::TempDir() + "replay-profile-" + std::to_string(::getpid()) + ".json";
  EXPECT_NE(ReadProfile(path, 1).error().text().find(path + ": No such file"), std::string::npos);
  std::ofstream(path) << "{}";
  EXPECT_EQ(ReadProfile(path, 1).error().text(), "profile " + path + ": format is missing");
  std::ofstream(path) << std::string(kFileSizeMax + 1, ' ');
  EXPECT_NE(ReadProfile(path, 1).error().text().find("more than"), std::string::npos);
  std::ofstream(path) << File(kTensor);
  EXPECT_TRUE(ReadProfile(path, 1).ok());
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace headrace::replay
