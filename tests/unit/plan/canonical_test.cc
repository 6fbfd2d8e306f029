// Plans as bytes.
#include "service/plan/canonical.h"

#include <gtest/gtest.h>

#include "tests/support/expect_text.h"
#include "tests/unit/plan/support.h"

namespace headrace::plan {
namespace {

// The plan of SplitsATensorAtTheEndOfTheBackwardPass, written down by hand.
constexpr std::string_view kText =
    "headrace-plan/1\n"
    "version 7\n"
    "policy exact\n"
    "barrier 0\n"
    "in_flight_max 0\n"
    "predicted_ns 15000000000\n"
    "lower_bound_ns 13000000000\n"
    "made_for 8000000000 2000000000 1000000000 1000000000000000\n"
    "blocks 2\n"
    "block 0 4000000000 8000000000\n"
    "part 1 0 3\n"
    "block 1 8000000000 13000000000\n"
    "part 0 0 2\n"
    "part 1 3 2\n"
    "end\n";

Plan PlanByHand() {
  const Profile profile = ProfileOf({{2, 4, 1}, {5, 4, 1}}, DType::kUInt8);
  return *MakePlan(Policy::kExact, profile, AllReduceRoute(Affine(1, 1)), 7);
}

TEST(CanonicalPlan, HasTheBytesThatTheFormatPromises) { EXPECT_EQ(Canonical(PlanByHand()), kText); }

// The offset basis is FNV-1a's hash of nothing; "a" is the value of its authors' test vectors.
TEST(PlanHash, IsFnv1a) {
  EXPECT_EQ(HashOf(std::string_view()), 0xcbf29ce484222325u);
  EXPECT_EQ(HashOf(std::string_view("a")), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(HashOf(PlanByHand()), HashOf(kText));
}

TEST(PlanHash, DiffersWithEveryField) {
  const Plan plan = PlanByHand();
  const auto differs = [&](auto change) {
    Plan changed = plan;
    change(changed);
    return HashOf(changed) != HashOf(plan);
  };
  EXPECT_TRUE(differs([](Plan& p) { p.version = 8; }));
  EXPECT_TRUE(differs([](Plan& p) { p.policy = Policy::kUsByte; }));
  EXPECT_TRUE(differs([](Plan& p) { p.barrier = true; }));
  EXPECT_TRUE(differs([](Plan& p) { p.in_flight_max = 2; }));
  EXPECT_TRUE(differs([](Plan& p) { p.predicted_s += 1e-9; }));
  EXPECT_TRUE(differs([](Plan& p) { p.lower_bound_s += 1e-9; }));
  EXPECT_TRUE(differs([](Plan& p) { p.made_for.backward_s += 1e-9; }));
  EXPECT_TRUE(differs([](Plan& p) { p.made_for.forward_s += 1e-9; }));
  EXPECT_TRUE(differs([](Plan& p) { p.made_for.startup_s += 1e-9; }));
  EXPECT_TRUE(differs([](Plan& p) { p.made_for.s_per_byte -= 1e-9; }));
  EXPECT_TRUE(differs([](Plan& p) { std::swap(p.blocks[0], p.blocks[1]); }));
  EXPECT_TRUE(differs([](Plan& p) { p.blocks[0].begin_s += 1e-9; }));
  EXPECT_TRUE(differs([](Plan& p) { p.blocks[0].end_s += 1e-9; }));
  EXPECT_TRUE(differs([](Plan& p) { p.blocks[0].ranges[0].offset_bytes = 1; }));
}

TEST(CanonicalPlan, ReadsBackAsItWas) {
  Random random(31);
  for (int instance = 0; instance < 100; ++instance) {
    const Profile profile = RandomProfile(random, 40, 1'000'000);
    const Route route = RandomRoute(random, profile);
    for (const Policy policy : kPolicies) {
      const Plan plan = *MakePlan(policy, profile, route);
      const std::string text = Canonical(plan);
      const Result<Plan> back = ParseCanonical(text);
      ASSERT_TRUE(back.ok()) << back.error().text();
      ASSERT_EQ(Canonical(*back), text);
      ASSERT_TRUE(CheckCoverage(*back, MakeWorkload(profile)).ok());
      ASSERT_NEAR(back->predicted_s, plan.predicted_s, 1e-9);
    }
  }
}

TEST(CanonicalPlan, CodecsReadBackAndOnlyAsTheFewestRuns) {
  const Codec topk{Codec::kTopK, 16};
  const std::vector<Codec> codecs = {Codec::kNone, Codec::kInt8, Codec::kInt8, topk,
                                     Codec::kNone, topk,         Codec::kInt8};
  Plan plan = PlanByHand();
  plan.codecs = CodecRunsOf(codecs);
  ASSERT_EQ(plan.codecs.size(), 4U);
  for (std::uint32_t i = 0; i < codecs.size(); ++i) EXPECT_EQ(CodecOf(plan, i), codecs[i]) << i;
  EXPECT_EQ(CodecOf(plan, 99), Codec(Codec::kNone));
  const std::string text = Canonical(plan);
  const Result<Plan> back = ParseCanonical(text);
  ASSERT_TRUE(back.ok()) << back.error().text();
  EXPECT_EQ(back->codecs, plan.codecs);
  EXPECT_NE(HashOf(plan), HashOf(PlanByHand()));
  const auto refuses = [&text](std::string_view to) {
    std::string other = text;
    constexpr std::string_view kFirst = "codec 3 0 1 2\n";
    EXPECT_NE(other.find(kFirst), std::string::npos) << text;
    other.replace(other.find(kFirst), kFirst.size(), to);
    return !ParseCanonical(other).ok();
  };
  EXPECT_FALSE(refuses("codec 3 0 1 2\n")) << "the text as it was";
  EXPECT_TRUE(refuses("codec 0 0 1 2\n")) << "no codec is none";
  EXPECT_TRUE(refuses("codec 3 1 1 2\n")) << "a parameter of a codec that has none";
  EXPECT_TRUE(refuses("codec 259 0 1 2\n"));
  EXPECT_TRUE(refuses("codec 99 0 1 2\n"));
  EXPECT_TRUE(refuses("codec 3 0 1 0\n"));
  EXPECT_TRUE(refuses("codec 3 0 1 4294967295\n"));
  EXPECT_TRUE(refuses("codec 3 0 2 2\n")) << "runs overlap";
  EXPECT_TRUE(refuses("codec 3 0 1 1\ncodec 3 0 2 1\n")) << "two runs that are one";
}

// Every line of the text is needed, and none may come after its end.
TEST(CanonicalPlan, RefusesAMissingLine) {
  for (std::size_t begin = 0; begin < kText.size();) {
    const std::size_t end = kText.find('\n', begin) + 1;
    std::string text(kText);
    text.erase(begin, end - begin);
    // A block keeps its meaning without one of its ranges; what is missing shows in the coverage.
    if (!kText.substr(begin).starts_with("part")) {
      EXPECT_FALSE(ParseCanonical(text).ok()) << text;
    }
    begin = end;
  }
  EXPECT_FALSE(ParseCanonical(std::string(kText) + "\n").ok());
}

TEST(CanonicalPlan, RefusesOtherSpellings) {
  const auto reason = [](std::string_view from, std::string_view to) {
    std::string text(kText);
    text.replace(text.find(from), from.size(), to);
    const Result<Plan> plan = ParseCanonical(text);
    if (plan) return std::string("accepted");
    EXPECT_EQ(plan.error().code(), Code::kInvalidArgument) << plan.error().text();
    return plan.error().text();
  };
  EXPECT_TEXT(reason("headrace-plan/1", "headrace-plan/2"), "line 1", "headrace-plan/1");
  EXPECT_TEXT(reason("version 7", "version 07"), "line 2");
  EXPECT_TEXT(reason("version 7", "version  7"), "line 2");
  EXPECT_TEXT(reason("version 7", "version 4294967296"), "line 2");
  EXPECT_TEXT(reason("policy exact", "policy best"), "line 3");
  EXPECT_TEXT(reason("barrier 0", "barrier 2"), "line 4");
  EXPECT_TEXT(reason("blocks 2", "blocks 3"), "line 15");
  EXPECT_TEXT(reason("block 1 ", "block 2 "), "line 12");
  EXPECT_TEXT(reason("part 1 0 3", "part 1 -1 3"), "line 11");
  EXPECT_TEXT(reason("15000000000", "1000000000000001"), "line 6");
  EXPECT_TEXT(reason("made_for 8", "made_for 1000008"), "line 8");
}

}  // namespace
}  // namespace headrace::plan
