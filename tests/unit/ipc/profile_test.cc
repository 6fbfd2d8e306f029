// Profile files: what is read, and what is refused at which line and field. tests/golden/plan has
// the words.
#include "ipc/profile.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>

#include "tests/support/profile_json.h"

namespace headrace::plan {
namespace {

// A good file, a tensor on lines 3 and 4 each; tests replace one piece of it.
constexpr std::string_view kGood =
    "{\"format\": \"headrace-profile/1\", \"model\": \"two\", \"dtype\": \"float16\",\n"
    " \"tensors\": [\n"
    "  {\"name\": \"a\", \"elements\": 10, \"backward_s\": 0.004, \"forward_s\": 2e-3},\n"
    "  {\"name\": \"b\", \"elements\": 3, \"backward_s\": 0, \"forward_s\": 1}\n"
    "]}\n";

std::string With(std::string_view from, std::string_view to) {
  std::string text(kGood);
  text.replace(text.find(from), from.size(), to);
  return text;
}

// Where a file is refused: "3 tensors[0].name", or the line alone.
std::string RefusedAt(const std::string& text) {
  const Result<Profile> profile = ParseProfile(text);
  if (profile) return "accepted";
  EXPECT_EQ(profile.error().code(), Code::kInvalidArgument);
  std::istringstream words(profile.error().text());
  std::string word;
  std::string line;
  words >> word >> word >> line >> word;  // profile: line 3: tensors[0].name: ...
  EXPECT_EQ(line.back(), ':') << profile.error().text();
  line.pop_back();
  if (word.back() != ':') return line;
  word.pop_back();
  return line + " " + word;
}

TEST(ProfileFile, IsReadInForwardOrder) {
  const Result<Profile> profile = ParseProfile(kGood);
  ASSERT_TRUE(profile.ok()) << profile.error().text();
  EXPECT_EQ(profile->model, "two");
  EXPECT_EQ(profile->dtype, DType::kFloat16);
  ASSERT_EQ(profile->tensors.size(), 2u);
  EXPECT_EQ(profile->tensors[0], (Tensor{"a", 10, 0.004, 0.002}));
  EXPECT_EQ(profile->tensors[1], (Tensor{"b", 3, 0, 1}));
}

TEST(ProfileFile, MayHoldFieldsOfOthers) {
  const std::string text = With("\"model\"", "\"machine\": {\"cores\": [1, {}]}, \"model\"");
  EXPECT_TRUE(ParseProfile(text).ok());
  EXPECT_TRUE(ParseProfile(With("\"elements\"", "\"shape\": [2, 5], \"elements\"")).ok());
}

TEST(ProfileFile, ReadsBackAsItWasWritten) {
  std::mt19937_64 random(41);
  std::uniform_real_distribution<double> magnitude(-9, 3);
  for (int instance = 0; instance < 200; ++instance) {
    Profile profile{"quotes \" and \\ and \n", static_cast<DType>(1 + instance % 4), {}};
    for (int index = 0; index <= instance % 30; ++index) {
      profile.tensors.push_back({"t" + std::to_string(index), 1 + random() % 1'000'000'000,
                                 std::pow(10, magnitude(random)), std::pow(10, magnitude(random))});
    }
    const Result<Profile> back = ParseProfile(ProfileJson(profile));
    ASSERT_TRUE(back.ok()) << back.error().text();
    ASSERT_EQ(*back, profile);
  }
}

TEST(ProfileFile, IsRefusedWithoutAField) {
  EXPECT_EQ(RefusedAt(With("\"format\": \"headrace-profile/1\", ", "")), "5 format");
  EXPECT_EQ(RefusedAt("{\"format\": \"headrace-profile/1\"}"), "1 tensors");
  EXPECT_EQ(RefusedAt(With("\"name\": \"b\", ", "")), "4 tensors[1].name");
  EXPECT_EQ(RefusedAt(With("\"elements\": 10, ", "")), "3 tensors[0].elements");
  EXPECT_EQ(RefusedAt(With(", \"forward_s\": 1", "")), "4 tensors[1].forward_s");
  EXPECT_EQ(RefusedAt(With("\"backward_s\": 0.004, ", "")), "3 tensors[0].backward_s");
}

TEST(ProfileFile, IsRefusedWithANegativeNumber) {
  EXPECT_EQ(RefusedAt(With("0.004", "-0.004")), "3 tensors[0].backward_s");
  EXPECT_EQ(RefusedAt(With("2e-3", "-1")), "3 tensors[0].forward_s");
  EXPECT_EQ(RefusedAt(With("10", "-10")), "3 tensors[0].elements");
}

TEST(ProfileFile, IsRefusedWithoutTensors) {
  EXPECT_EQ(RefusedAt("{\"format\": \"headrace-profile/1\",\n \"tensors\": []}"), "2 tensors");
}

TEST(ProfileFile, IsRefusedWithNan) {
  EXPECT_EQ(RefusedAt(With("0.004", "NaN")), "3 tensors[0].backward_s");
  EXPECT_EQ(RefusedAt(With("0.004", "\"NaN\"")), "3 tensors[0].backward_s");
  EXPECT_EQ(RefusedAt(With("0.004", "null")), "3 tensors[0].backward_s");
}

TEST(ProfileFile, IsRefusedInAnotherFormat) {
  EXPECT_EQ(RefusedAt(With("headrace-profile/1", "headrace-profile/2")), "1 format");
  EXPECT_EQ(RefusedAt(With("float16", "float8")), "1 dtype");
}

TEST(ProfileFile, IsRefusedWithTrailingGarbage) {
  EXPECT_EQ(RefusedAt(std::string(kGood) + "x"), "6");
  EXPECT_NE(RefusedAt(std::string(kGood) + "{}"), "accepted");
}

TEST(ProfileFile, IsRefusedWithTheWrongKindOfValue) {
  EXPECT_EQ(RefusedAt(With("10", "1.5")), "3 tensors[0].elements");
  EXPECT_EQ(RefusedAt(With("10", "0")), "3 tensors[0].elements");
  EXPECT_EQ(RefusedAt(With("10", "{}")), "3 tensors[0].elements");
  EXPECT_EQ(RefusedAt(With("10", "[10]")), "3 tensors[0].elements");
  EXPECT_EQ(RefusedAt(With("\"a\"", "1")), "3 tensors[0].name");
  EXPECT_EQ(RefusedAt(With("\"two\"", "true")), "1 model");
  EXPECT_EQ(RefusedAt(With("10", "999999999999999")), "3 tensors[0].elements");
  EXPECT_EQ(RefusedAt(With("0.004", "1e7")), "3 tensors[0].backward_s");
  EXPECT_NE(RefusedAt(With("0.004", "1e999")), "accepted");
}

TEST(ProfileFile, IsRefusedWithAFieldTwice) {
  EXPECT_EQ(RefusedAt(With("\"elements\": 3", "\"elements\": 3, \"elements\": 4")),
            "4 tensors[1].elements");
  EXPECT_EQ(RefusedAt(With("\"model\": \"two\"", "\"format\": \"headrace-profile/1\"")),
            "1 format");
}

TEST(ProfileFile, IsRefusedIfItIsNoObject) {
  EXPECT_EQ(RefusedAt("[]"), "1");
  EXPECT_EQ(RefusedAt("3"), "1");
  EXPECT_NE(RefusedAt(""), "accepted");
  EXPECT_EQ(RefusedAt(With("[", "3, \"x\": [")), "2 tensors");
  EXPECT_EQ(RefusedAt(With("{\"name\": \"a\"", "[{\"name\": \"a\"")), "3 tensors");
}

TEST(ProfileFile, NamesTheLineOfANumberAtALineEnd) {
  EXPECT_EQ(RefusedAt(With("10,", "0\n,")), "3 tensors[0].elements");
}

TEST(ProfileFile, IsReadFromAFileThatErrorsName) {
  const std::string path = testing::TempDir() + "profile-" + std::to_string(::getpid()) + ".json";
  const Result<Profile> absent = ReadProfile(path);
  EXPECT_NE(absent.error().text().find(path), std::string::npos);
  EXPECT_NE(absent.error().text().find("No such file"), std::string::npos);
  std::ofstream(path) << "{}";
  EXPECT_TRUE(ReadProfile(path).error().text().starts_with(path + ": profile: line 1: format: "));
  std::ofstream(path) << kGood;
  ASSERT_TRUE(ReadProfile(path).ok());
  EXPECT_EQ(*ReadProfile(path), *ParseProfile(kGood));
  // What is too large for a profile is not parsed.
  std::filesystem::resize_file(path, kProfileFileSizeMax + 1);
  const Result<Profile> huge = ReadProfile(path);
  EXPECT_EQ(huge.error().code(), Code::kInvalidArgument);
  EXPECT_NE(huge.error().text().find(std::to_string(kProfileFileSizeMax)), std::string::npos);
  std::filesystem::remove(path);
}

TEST(Profile, IsRefusedWithTheTensorAndTheField) {
  const auto reason = [](const Tensor& tensor) {
    const Status status = CheckProfile({"", DType::kFloat32, {{"t0", 1, 0, 0}, tensor}});
    return status.ok() ? "accepted" : status.error().text();
  };
  const auto names = [](const std::string& text, const char* field) {
    return text.starts_with("tensors[1] (t1): " + std::string(field));
  };
  EXPECT_EQ(reason({"t1", 1, 0, 0}), "accepted");
  EXPECT_TRUE(names(reason({"t1", 0, 0, 0}), "elements"));
  EXPECT_TRUE(names(reason({"t1", kElementsMax, 0, 0}), "elements"));
  EXPECT_TRUE(names(reason({"t1", 1, -1, 0}), "backward_s"));
  EXPECT_TRUE(names(reason({"t1", 1, 0, std::nan("")}), "forward_s"));
  EXPECT_TRUE(names(reason({"t1", 1, std::numeric_limits<double>::infinity(), 0}), "backward_s"));
  EXPECT_TRUE(names(reason({"t1", 1, 9e5, 9e5}), "an iteration"));
  const Status status = CheckProfile({"", static_cast<DType>(99), {{"t0", 1, 0, 0}}});
  EXPECT_NE(status.error().text().find("99"), std::string::npos);
}

}  // namespace
}  // namespace headrace::plan
