// Profile files: what is read, and what is refused with which words.
#include "service/plan/profile_json.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "service/plan/planner.h"
#include "tests/unit/plan/support.h"

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

std::string Refusal(const std::string& text) {
  const Result<Profile> profile = ParseProfile(text);
  return profile ? "accepted" : profile.error().text();
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
  Random random(41);
  for (int instance = 0; instance < 200; ++instance) {
    Profile profile = RandomProfile(random, 30, 1'000'000'000);
    profile.model = "quotes \" and \\ and \n";
    const Result<Profile> back = ParseProfile(ProfileJson(profile));
    ASSERT_TRUE(back.ok()) << back.error().text();
    ASSERT_EQ(*back, profile);
  }
}

TEST(ProfileFile, IsRefusedWithoutAField) {
  EXPECT_EQ(Refusal(With("\"format\": \"headrace-profile/1\", ", "")),
            "profile: line 5: format: is missing");
  EXPECT_EQ(Refusal("{\"format\": \"headrace-profile/1\"}"),
            "profile: line 1: tensors: is missing");
  EXPECT_EQ(Refusal(With("\"name\": \"b\", ", "")), "profile: line 4: tensors[1].name: is missing");
  EXPECT_EQ(Refusal(With("\"elements\": 10, ", "")),
            "profile: line 3: tensors[0].elements: is missing");
  EXPECT_EQ(Refusal(With(", \"forward_s\": 1", "")),
            "profile: line 4: tensors[1].forward_s: is missing");
  EXPECT_EQ(Refusal(With("\"backward_s\": 0.004, ", "")),
            "profile: line 3: tensors[0].backward_s: is missing");
}

TEST(ProfileFile, IsRefusedWithANegativeNumber) {
  EXPECT_EQ(Refusal(With("0.004", "-0.004")),
            "profile: line 3: tensors[0].backward_s: is negative");
  EXPECT_EQ(Refusal(With("2e-3", "-1")), "profile: line 3: tensors[0].forward_s: is negative");
  EXPECT_EQ(Refusal(With("10", "-10")), "profile: line 3: tensors[0].elements: is negative");
}

TEST(ProfileFile, IsRefusedWithoutTensors) {
  EXPECT_EQ(Refusal("{\"format\": \"headrace-profile/1\",\n \"tensors\": []}"),
            "profile: line 2: tensors: there are none");
}

TEST(ProfileFile, IsRefusedWithNan) {
  EXPECT_EQ(Refusal(With("0.004", "NaN")),
            "profile: line 3: tensors[0].backward_s: this is not JSON: syntax error while parsing "
            "value - invalid literal; last read: '\"backward_s\": N'");
  EXPECT_EQ(Refusal(With("0.004", "\"NaN\"")),
            "profile: line 3: tensors[0].backward_s: must not be a string");
  EXPECT_EQ(Refusal(With("0.004", "null")),
            "profile: line 3: tensors[0].backward_s: must not be null");
}

TEST(ProfileFile, IsRefusedInAnotherFormat) {
  EXPECT_EQ(Refusal(With("headrace-profile/1", "headrace-profile/2")),
            "profile: line 1: format: \"headrace-profile/2\" is not \"headrace-profile/1\"");
  EXPECT_EQ(Refusal(With("float16", "float8")),
            "profile: line 1: dtype: \"float8\" is no element type");
}

TEST(ProfileFile, IsRefusedWithTrailingGarbage) {
  EXPECT_EQ(Refusal(std::string(kGood) + "x"), "profile: line 6: something follows the profile");
  EXPECT_NE(Refusal(std::string(kGood) + "{}"), "accepted");
}

TEST(ProfileFile, IsRefusedWithTheWrongKindOfValue) {
  EXPECT_EQ(Refusal(With("10", "1.5")),
            "profile: line 3: tensors[0].elements: is not a whole number");
  EXPECT_EQ(Refusal(With("10", "0")), "profile: line 3: tensors[0].elements: is 0");
  EXPECT_EQ(Refusal(With("10", "{}")),
            "profile: line 3: tensors[0].elements: must not be an object");
  EXPECT_EQ(Refusal(With("10", "[10]")),
            "profile: line 3: tensors[0].elements: must not be an array");
  EXPECT_EQ(Refusal(With("\"a\"", "1")), "profile: line 3: tensors[0].name: must not be a number");
  EXPECT_EQ(Refusal(With("\"two\"", "true")), "profile: line 1: model: must not be true");
  EXPECT_EQ(Refusal(With("10", "999999999999999")),
            "profile: line 3: tensors[0].elements: exceeds the limit for a model");
  EXPECT_EQ(Refusal(With("0.004", "1e7")),
            "profile: line 3: tensors[0].backward_s: exceeds the limit for a model");
  EXPECT_NE(Refusal(With("0.004", "1e999")), "accepted");
}

TEST(ProfileFile, IsRefusedWithAFieldTwice) {
  EXPECT_EQ(Refusal(With("\"elements\": 3", "\"elements\": 3, \"elements\": 4")),
            "profile: line 4: tensors[1].elements: stands twice");
  EXPECT_EQ(Refusal(With("\"model\": \"two\"", "\"format\": \"headrace-profile/1\"")),
            "profile: line 1: format: stands twice");
}

TEST(ProfileFile, IsRefusedIfItIsNoObject) {
  EXPECT_EQ(Refusal("[]"), "profile: line 1: a profile must be an object");
  EXPECT_EQ(Refusal("3"), "profile: line 1: a profile must be an object");
  EXPECT_NE(Refusal(""), "accepted");
  EXPECT_EQ(Refusal(With("[", "3, \"x\": [")), "profile: line 2: tensors: must not be a number");
  EXPECT_EQ(Refusal(With("{\"name\": \"a\"", "[{\"name\": \"a\"")),
            "profile: line 3: tensors: must not be an array");
}

TEST(ProfileFile, NamesTheLineOfANumberAtALineEnd) {
  EXPECT_EQ(Refusal(With("10,", "0\n,")), "profile: line 3: tensors[0].elements: is 0");
}

// Three published profiles, if they are at hand: exact comes as near to the bound as the literature
// of this planner says.
TEST(ReferenceProfiles, GiveTheKnownRatios) {
  const char* folder = std::getenv("HEADRACE_REFERENCE_PROFILES");
  if (folder == nullptr) GTEST_SKIP() << "HEADRACE_REFERENCE_PROFILES is not set";
  struct Known {
    const char* name;
    double startup_s;
    double ratio;  // communication / computation
    double exact;  // to the bound
  };
  for (const Known& known :
       {Known{"resnet50", 1.3e-3, 1, 1.020}, Known{"resnet50", 1.3e-3, 1.5, 1.009},
        Known{"resnet50", 3e-4, 1, 1.005}, Known{"resnet50", 1e-4, 1, 1.002},
        Known{"vgg16", 1.3e-3, 1, 1.010}, Known{"bert_base", 1.3e-3, 1.5, 1.016},
        Known{"bert_base", 1.3e-3, 1, 1.000}}) {
    std::ostringstream text;
    text << std::ifstream(std::filesystem::path(folder) / (std::string(known.name) + ".json"))
                .rdbuf();
    const Result<Profile> profile = ParseProfile(text.str());
    ASSERT_TRUE(profile.ok()) << profile.error().text();
    const Workload work = MakeWorkload(*profile);
    const double s_per_byte = known.ratio * (work.backward_s() + work.forward_s()) /
                              static_cast<double>(work.total_bytes());
    const Route route = AllReduceRoute(Affine(known.startup_s, s_per_byte));
    const Plan plan = *MakePlan(Policy::kExact, *profile, route);
    EXPECT_NEAR(plan.predicted_s / plan.lower_bound_s, known.exact, 5.1e-4) << known.name;
  }
}

}  // namespace
}  // namespace headrace::plan
