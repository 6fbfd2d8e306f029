// What codecs cost in plans, and which the plan chooses, against every assignment of small
// problems.
#include "service/plan/coded.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "ipc/base/matrix.h"
#include "service/plan/canonical.h"
#include "service/plan/choose_codecs.h"
#include "service/plan/simulate.h"
#include "tests/unit/plan/support.h"

namespace headrace::plan {
namespace {

constexpr CodecCost kInt8{
    .codec = Codec::kInt8, .share = 0.25, .encode_s_per_byte = 2e-10, .decode_s_per_byte = 1e-10};
constexpr CodecCost kBFloat16{.codec = Codec::kBFloat16,
                              .share = 0.5,
                              .encode_s_per_byte = 1e-10,
                              .decode_s_per_byte = 1e-10};
constexpr CodecCost kSlow{
    .codec = Codec::kTopK, .share = 0.02, .encode_s_per_byte = 2e-8, .decode_s_per_byte = 1e-9};

Route CodedRoute(const CostPiece& line) {
  Route route = AllReduceRoute({{line}});
  for (const CodecCost& cost : {kInt8, kBFloat16, kSlow}) {
    route.stages[0].coded.push_back({cost, {EncodedLine(line, cost, {})}});
  }
  return route;
}

CodecChoice Free(const char* name) {
  const auto choice = ChoiceNamed(name);
  EXPECT_TRUE(choice.has_value()) << name;
  return choice.value_or(CodecChoice());
}

TEST(EncodedLine, OverlapsPieceByPiece) {
  const CostPiece line{0, 1e-4, 8e-9};
  const PieceSizes sizes;
  for (const CodecCost& cost : {kInt8, kBFloat16, kSlow}) {
    const PiecewiseCost coded = EncodedLine(line, cost, sizes);
    ASSERT_TRUE(CheckPiecewiseCost(coded).ok());
    for (const double bytes : {1e3, 2e4, 1e5, 5e5, 2e6, 1e8}) {
      const double encoded = bytes * cost.share;
      // The lane's own way to cut a transfer.
      double piece = std::clamp(encoded / sizes.pieces_count, sizes.least_bytes, sizes.most_bytes);
      piece = std::max(std::min(piece, sizes.most_plain_bytes * cost.share), sizes.least_bytes);
      const double pieces = std::max(1.0, encoded / piece);
      const double wire = line.s_per_byte * encoded;
      const double coding = (cost.encode_s_per_byte + cost.decode_s_per_byte) * bytes;
      const double expected =
          line.startup_s + std::max(wire, coding) + std::min(wire, coding) / pieces;
      EXPECT_NEAR(coded.Seconds(static_cast<std::uint64_t>(bytes)), expected, 0.02 * expected)
          << bytes << " bytes as " << Name(cost.codec);
    }
  }
}

TEST(BlockSeconds, ABlockOfSeveralCodecsIsATransferForEach) {
  const Route route = CodedRoute({0, 1e-4, 8e-9});
  const Stage& stage = route.stages[0];
  Workload work = MakeWorkload(ProfileOf({{100'000, 1, 1}, {100'000, 1, 1}, {2000, 1, 1}}));
  work.codecs = {Codec::kInt8, Codec::kNone, Codec::kBFloat16};
  Draft draft;
  draft.Open();
  for (std::uint32_t l = 0; l < 3; ++l) draft.Append(l, 0, work.bytes[l]);
  // What is too small is not encoded.
  EXPECT_DOUBLE_EQ(BlockSeconds(stage, work, Collective::kAllReduce, draft.ranges, 808'000),
                   stage.coded[0].lines[0].Seconds(400'000) + StageCost(stage).Seconds(400'000) +
                       StageCost(stage).Seconds(8000));
  work.codecs.clear();
  EXPECT_DOUBLE_EQ(BlockSeconds(stage, work, Collective::kAllReduce, draft.ranges, 808'000),
                   StageCost(stage).Seconds(808'000));
}

// As over servers: what lies between two encoded gradients and crosses as it is cuts them apart.
TEST(BlockSeconds, WhereTransfersHoldNeighboursOnlyEachRunIsOne) {
  Route route = CodedRoute({0, 1e-4, 8e-9});
  Stage& stage = route.stages[0];
  Workload work =
      MakeWorkload(ProfileOf({{100'000, 1, 1}, {2000, 1, 1}, {100'000, 1, 1}, {50'000, 1, 1}}));
  work.codecs = {Codec::kInt8, Codec::kNone, Codec::kInt8, Codec::kInt8};
  Draft draft;
  draft.Open();
  for (const std::uint32_t l : {2U, 3U, 0U, 1U}) draft.Append(l, 0, work.bytes[l]);
  const auto seconds = [&] {
    return BlockSeconds(stage, work, Collective::kAllReduce, draft.ranges, work.total_bytes());
  };
  const PiecewiseCost& int8 = stage.coded[0].lines[0];
  const double bias_s = StageCost(stage).Seconds(8000);
  EXPECT_DOUBLE_EQ(seconds(), int8.Seconds(1'000'000) + bias_s);
  stage.offsets_bytes = {0, 400'000, 408'000, 808'000};
  EXPECT_DOUBLE_EQ(seconds(), int8.Seconds(400'000) + int8.Seconds(600'000) + bias_s);
  EXPECT_EQ(RailSeconds(stage, work, draft.ranges, work.total_bytes()),
            std::vector<double>{seconds()});
  stage.offsets_bytes[3] = 808'064;
  EXPECT_DOUBLE_EQ(seconds(), 2 * int8.Seconds(400'000) + int8.Seconds(200'000) + bias_s);
  // A transfer of its own where the plan leaves out what is between.
  stage.offsets_bytes[3] = 808'000;
  draft.ranges[1].offset_bytes = 40'000;
  draft.ranges[1].bytes = 160'000;
  EXPECT_DOUBLE_EQ(seconds(), 2 * int8.Seconds(400'000) + int8.Seconds(160'000) + bias_s);
}

// A plan that encodes nothing is not to look cheaper for that.
TEST(BlockSeconds, WhereTransfersHoldNeighboursOnlyEachPlainRunIsOne) {
  Route route = CodedRoute({0, 1e-4, 8e-9});
  Stage& stage = route.stages[0];
  const Workload work = MakeWorkload(ProfileOf({{1000, 1, 1}, {2000, 1, 1}, {3000, 1, 1}}));
  Draft draft;
  draft.Open();
  for (const std::uint32_t l : {0U, 1U, 2U}) draft.Append(l, 0, work.bytes[l]);
  const auto seconds = [&] {
    return BlockSeconds(stage, work, Collective::kAllReduce, draft.ranges, work.total_bytes());
  };
  const double one_s = StageCost(stage).Seconds(24'000);
  EXPECT_DOUBLE_EQ(seconds(), one_s);
  // The last layers come first in memory.
  stage.offsets_bytes = {20'000, 12'000, 0};
  EXPECT_DOUBLE_EQ(seconds(), one_s);
  stage.offsets_bytes = {20'064, 12'000, 0};
  EXPECT_DOUBLE_EQ(seconds(), one_s + 1e-4);
  EXPECT_EQ(RailSeconds(stage, work, draft.ranges, work.total_bytes()),
            std::vector<double>{seconds()});
  stage.offsets_bytes = {0, 12'000, 24'000};
  stage.coded.clear();
  EXPECT_DOUBLE_EQ(seconds(), one_s + 2e-4);
}

constexpr CodecCost kFactors{.codec = Codec::kPowerSgd,
                             .share = 0.02,
                             .encode_s_per_byte = 3e-10,
                             .decode_s_per_byte = 2e-10};

TEST(BlockSeconds, EachMatrixIsATransferByItselfWithTheBytesOfItsFactors) {
  const CostPiece line{0, 1e-4, 8e-9};
  Route route = CodedRoute(line);
  Stage& stage = route.stages[0];
  stage.coded.push_back({kFactors, {FactoredLine(line, kFactors)}});
  Workload work = MakeWorkload(ProfileOf({{100'000, 1, 1}, {40'000, 1, 1}, {90'000, 1, 1}}));
  work.rows = {100, 200, 0};
  work.codecs = {Codec::kPowerSgd, Codec::kPowerSgd, Codec::kInt8};
  Draft draft;
  draft.Open();
  for (std::uint32_t l = 0; l < 3; ++l) draft.Append(l, 0, work.bytes[l]);
  const double factors = 4.0 * 4 * (100 + 1000 + 200 + 200);
  const double expected =
      4 * 1e-4 + 5e-10 * 560'000 + 8e-9 * factors + stage.coded[0].lines[0].Seconds(360'000);
  EXPECT_NEAR(BlockSeconds(stage, work, Collective::kAllReduce, draft.ranges, 920'000), expected,
              1e-12);
  EXPECT_DOUBLE_EQ(SentShare(work, 0, Codec::kPowerSgd), 4.0 * 1100 / 100'000);
  EXPECT_EQ(SentShare(work, 2, Codec::kPowerSgd), 1);
  EXPECT_EQ(SentShare(work, 0, Codec::kInt8), 1);
  // Over several rails they take turns.
  stage.rails.push_back({1, {{line}}});
  for (CodedLines& coded : stage.coded) coded.lines.push_back(coded.lines.front());
  work.codecs[2] = Codec::kNone;
  const std::vector<double> alone =
      RailSeconds(stage, work, std::span(draft.ranges).first(2), 560'000);
  EXPECT_NEAR(alone[0], 2 * 1e-4 + 5e-10 * 400'000 + 8e-9 * 4 * 4 * 1100, 1e-12);
  EXPECT_NEAR(alone[1], 2 * 1e-4 + 5e-10 * 160'000 + 8e-9 * 4 * 4 * 400, 1e-12);
  const std::vector<double> second =
      RailSeconds(stage, work, std::span(draft.ranges).subspan(1, 1), 160'000);
  EXPECT_LT(second[0], 0);
  EXPECT_EQ(second[1], alone[1]);
}

TEST(CodedPlans, KeepMatricesThatCrossAsFactorsWhole) {
  Random random(43);
  int factored = 0;
  for (int instance = 0; instance < 40; ++instance) {
    Profile profile = RandomProfile(random, 9, 2'000'000);
    const CostPiece line = RandomLine(random, profile);
    Route route = CodedRoute(line);
    route.stages[0].coded.push_back({kFactors, {FactoredLine(line, kFactors)}});
    std::vector<CodecChoice> choices;
    for (Tensor& tensor : profile.tensors) {
      tensor.elements = (tensor.elements + 99) / 100 * 100;
      tensor.rows = 100;
      const bool fits = HasFactors(Codec::kPowerSgd, tensor.rows, tensor.elements);
      const std::vector<CodecChoice> possible = {
          Codec::kInt8, fits ? CodecChoice(Codec::kPowerSgd) : CodecChoice(),
          Free(fits ? "auto:powersgd,int8" : "auto:int8")};
      choices.push_back(possible[Below(random, possible.size())]);
    }
    for (const Policy policy : kPolicies) {
      const auto plan = MakePlan(policy, profile, route, 1, {}, {}, choices);
      ASSERT_TRUE(plan.ok()) << plan.error().text();
      ASSERT_TRUE(CheckCoverage(*plan, MakeWorkload(profile)).ok()) << Name(policy);
      const std::vector<Codec> codecs = CodecsOf(*plan, profile.tensors.size());
      for (const PlannedBlock& block : plan->blocks) {
        for (const TensorRange& range : block.ranges) {
          if (codecs.empty() || codecs[range.tensor] != Codec(Codec::kPowerSgd)) continue;
          ++factored;
          EXPECT_EQ(range.bytes, profile.tensors[range.tensor].elements * sizeof(float))
              << Name(policy) << " instance " << instance;
        }
      }
      const auto simulated = Simulate(profile, route, *plan, {});
      ASSERT_TRUE(simulated.ok());
      EXPECT_NEAR(simulated->iteration_s, plan->predicted_s, plan->predicted_s * kRounding)
          << Name(policy) << " instance " << instance;
    }
  }
  EXPECT_GT(factored, 100);
}

TEST(CodedPlans, CoverEveryByteAndTheSimulationAgreesForEveryPolicy) {
  Random random(41);
  for (int instance = 0; instance < 40; ++instance) {
    const Profile profile = RandomProfile(random, 9, 2'000'000);
    Route route = CodedRoute(RandomLine(random, profile));
    if (instance % 2 == 1) {
      const Route network = route;
      route =
          HierarchyRoute(Affine(1e-6, 1e-10), StageCost(network.stages[0]), Affine(1e-6, 1e-10));
      route.stages[1].coded = network.stages[0].coded;
    }
    std::vector<CodecChoice> choices;
    for (std::size_t l = 0; l < profile.tensors.size(); ++l) {
      const std::vector<CodecChoice> possible = {Codec::kNone, Codec::kInt8, Codec::kTopK,
                                                 Codec::kInt4, Free("auto:int8,bf16")};
      choices.push_back(possible[Below(random, possible.size())]);
    }
    for (const Policy policy : kPolicies) {
      const auto plan = MakePlan(policy, profile, route, 1, {}, {}, choices);
      ASSERT_TRUE(plan.ok()) << plan.error().text();
      ASSERT_TRUE(CheckCoverage(*plan, MakeWorkload(profile)).ok()) << Name(policy);
      EXPECT_LE(plan->lower_bound_s, plan->predicted_s * (1 + kRounding)) << Name(policy);
      const auto simulated = Simulate(profile, route, *plan, {});
      ASSERT_TRUE(simulated.ok());
      EXPECT_NEAR(simulated->iteration_s, plan->predicted_s, plan->predicted_s * kRounding)
          << Name(policy) << " instance " << instance;
      const auto back = ParseCanonical(Canonical(*plan));
      ASSERT_TRUE(back.ok()) << back.error().text();
      EXPECT_EQ(back->codecs, plan->codecs);
      EXPECT_EQ(back->verdict.pays, plan->verdict.pays);
    }
  }
}

// Every assignment of the two codecs and none to the tensors, on the lane alone.
double BruteForceCodecs(const Profile& profile, const Route& route) {
  const std::vector<Codec> codecs = {Codec::kNone, Codec::kInt8, Codec::kBFloat16};
  Workload work = MakeWorkload(profile);
  std::size_t assignments = 1;
  for (std::size_t l = 0; l < work.size(); ++l) assignments *= codecs.size();
  double best_s = 0;
  for (std::size_t assignment = 0; assignment < assignments; ++assignment) {
    work.codecs.assign(work.size(), Codec::kNone);
    std::size_t rest = assignment;
    for (Codec& codec : work.codecs) {
      codec = codecs[rest % codecs.size()];
      rest /= codecs.size();
    }
    const DraftOptions options{.bound_s = work.backward_s() + work.forward_s()};
    const Draft draft = MakeDraft(Policy::kExact, work, route, options);
    const double seconds = MakeTimetable(work, route, draft).iteration_s;
    if (assignment == 0 || seconds < best_s) best_s = seconds;
  }
  return best_s;
}

TEST(ChooseCodecs, IsWithinItsSlackOfEveryAssignment) {
  Random random(42);
  int pays = 0;
  int hides = 0;
  for (int instance = 0; instance < 60; ++instance) {
    const Profile profile = RandomProfile(random, 5, 2'000'000);
    const Route route = CodedRoute(RandomLine(random, profile));
    const std::vector<CodecChoice> choices(profile.tensors.size(), Free("auto:int8,bf16"));
    const auto plan = MakePlan(Policy::kExact, profile, route, 1, {}, {}, choices);
    ASSERT_TRUE(plan.ok());
    const double best_s = BruteForceCodecs(profile, route);
    const double slack = 1 + kCodecSlack + kCodecGainMin;
    EXPECT_LE(plan->predicted_s, best_s * slack) << "instance " << instance;
    if (!plan->verdict.exists()) continue;
    ++(plan->verdict.pays ? pays : hides);
    EXPECT_EQ(plan->verdict.pays, !plan->codecs.empty());
    if (plan->verdict.pays) {
      EXPECT_LE(plan->verdict.coded_s, plan->verdict.plain_s * (1 - kCodecGainMin));
    }
  }
  EXPECT_GT(pays, 5);
  EXPECT_GT(hides, 5);
}

TEST(ChooseCodecs, EncodesNothingThatHidesBehindComputing) {
  // The backward pass of the first tensor hides the others.
  const Profile profile =
      ProfileOf({{1'000'000, 0.2, 0.01}, {1'000'000, 0.01, 0.01}, {1'000'000, 0.01, 0.01}});
  const Route route = CodedRoute({0, 1e-4, 8e-9});
  const std::vector<CodecChoice> choices(3, Free("auto:bf16,int8"));
  const auto plan = MakePlan(Policy::kExact, profile, route, 1, {}, {}, choices);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->codecs, (std::vector<CodecRun>{{Codec::kInt8, 0, 1}}));
  EXPECT_TRUE(plan->verdict.pays);
  EXPECT_EQ(plan->verdict.cost, kInt8);
}

// int8 has fewer bytes, but the first tensor's backward pass hides those of bf16 as well.
TEST(ChooseCodecs, TakesTheCodecThatErrsLeastOfThoseThatAreFastEnough) {
  const Profile profile = ProfileOf({{1000, 0.08, 0.01}, {4'000'000, 0.01, 0.01}});
  const std::vector<CodecChoice> choices(2, Free("auto:int8,bf16"));
  const auto in = [&](double s_per_byte) {
    auto plan =
        MakePlan(Policy::kExact, profile, CodedRoute({0, 1e-4, s_per_byte}), 1, {}, {}, choices);
    EXPECT_TRUE(plan.ok());
    return std::move(plan).value();
  };
  const Plan mild = in(8e-9);
  EXPECT_EQ(mild.codecs, (std::vector<CodecRun>{{Codec::kBFloat16, 1, 1}}));
  EXPECT_TRUE(mild.verdict.pays);
  EXPECT_EQ(mild.verdict.cost, kBFloat16);
  const Plan strong = in(1.6e-8);
  EXPECT_EQ(strong.codecs, (std::vector<CodecRun>{{Codec::kInt8, 1, 1}}));
  EXPECT_EQ(strong.verdict.cost, kInt8);
}

TEST(ChooseCodecs, LeavesAsTheyAreWhatEncodingSlowsDown) {
  const Profile profile = ProfileOf({{1'000'000, 0.01, 0.01}, {1'000'000, 0.01, 0.01}});
  const Route route = CodedRoute({0, 1e-4, 8e-9});
  std::vector<CodecChoice> choices(2, Free("auto:topk"));
  const auto plan = MakePlan(Policy::kExact, profile, route, 1, {}, {}, choices);
  ASSERT_TRUE(plan.ok());
  EXPECT_TRUE(plan->codecs.empty());
  EXPECT_FALSE(plan->verdict.pays);
  EXPECT_EQ(plan->verdict.cost, kSlow);
  EXPECT_GT(plan->verdict.coded_s, plan->verdict.plain_s);
  // Whoever names it alone has it, and is told what it costs.
  choices.assign(2, Codec::kTopK);
  const auto forced = MakePlan(Policy::kExact, profile, route, 1, {}, {}, choices);
  ASSERT_TRUE(forced.ok());
  EXPECT_EQ(forced->codecs, (std::vector<CodecRun>{{Codec::kTopK, 0, 2}}));
  EXPECT_NEAR(forced->predicted_s, plan->verdict.coded_s, 1e-9);
  EXPECT_EQ(forced->verdict.cost, kSlow);
  EXPECT_FALSE(forced->verdict.pays);
  EXPECT_EQ(forced->verdict.coded_s, forced->predicted_s);
  EXPECT_NEAR(forced->verdict.plain_s, plan->predicted_s, 1e-9);
}

// Where a codec is named alone, nothing follows from the verdict; it is judged anew with each plan.
TEST(ChooseCodecs, JudgesWhatItMustUseAndGoesOnUsingIt) {
  const Profile profile = ProfileOf({{1'000'000, 0.01, 0.01}, {1'000'000, 0.01, 0.01}});
  const std::vector<CodecChoice> choices(2, Codec::kInt8);
  const auto made =
      MakePlan(Policy::kExact, profile, CodedRoute({0, 1e-4, 8e-9}), 2, {}, {}, choices);
  ASSERT_TRUE(made.ok());
  EXPECT_TRUE(made->verdict.pays);
  EXPECT_GT(made->verdict.plain_s, made->verdict.coded_s);
  // Without a cost of the codec there is nothing to compare.
  const auto unmeasured =
      MakePlan(Policy::kExact, profile, AllReduceRoute(Affine(1e-4, 8e-9)), 2, {}, {}, choices);
  ASSERT_TRUE(unmeasured.ok());
  EXPECT_FALSE(unmeasured->verdict.exists());
  // The network has become fast. No plan is made for that alone.
  const auto fast = MakeFasterPlan(Policy::kExact, profile, CodedRoute({0, 1e-4, 1e-11}), 3,
                                   {.plan = *made, .margin = 0.5}, {}, choices);
  ASSERT_TRUE(fast.ok());
  EXPECT_FALSE(fast->has_value());
  const auto forced =
      MakePlan(Policy::kExact, profile, CodedRoute({0, 1e-4, 1e-11}), 3, {}, {}, choices);
  ASSERT_TRUE(forced.ok());
  EXPECT_FALSE(forced->codecs.empty());
  EXPECT_FALSE(forced->verdict.pays);
}

TEST(ChooseCodecs, StopsEncodingWhereThatNoLongerPays) {
  const Profile slow_network =
      ProfileOf({{1'000'000, 0.01, 0.01}, {1'000'000, 0.01, 0.01}, {1'000'000, 0.01, 0.01}});
  const std::vector<CodecChoice> choices(3, Free("auto:int8"));
  const auto coded =
      MakePlan(Policy::kExact, slow_network, CodedRoute({0, 1e-4, 8e-9}), 2, {}, {}, choices);
  ASSERT_TRUE(coded.ok());
  ASSERT_TRUE(coded->verdict.pays);
  const auto replan = [&](double s_per_byte) {
    return MakeFasterPlan(Policy::kExact, slow_network, CodedRoute({0, 1e-4, s_per_byte}), 3,
                          {.plan = *coded, .margin = 0.005}, {}, choices);
  };
  const auto as_fast = replan(8e-9);
  ASSERT_TRUE(as_fast.ok());
  EXPECT_FALSE(as_fast->has_value());
  const auto fast = replan(1e-11);
  ASSERT_TRUE(fast.ok());
  ASSERT_TRUE(fast->has_value());
  EXPECT_TRUE((*fast)->codecs.empty());
  EXPECT_FALSE((*fast)->verdict.pays);
}

// Times and costs that are seen anew for each plan, and are off by up to 3 % each time.
class UnevenTest : public testing::Test {
 protected:
  // How often 60 plans begin or stop to encode where that saves about `gain` of an iteration, if it
  // counts, or does not, that they have stopped before.
  int Turns(double gain, std::uint64_t seed, bool counts_stops) {
    Random random(seed);
    const auto about = [&random](double value) { return value * (0.97 + 0.06 * random.Unit()); };
    std::optional<Plan> present;
    std::uint32_t stops = 0;
    int turns = 0;
    for (int round = 0; round < 60; ++round) {
      // The backward pass of the first hides the second, but for `gain` of the iteration.
      const Profile profile =
          ProfileOf({{2'000, about(0.1), about(0.02)}, {1'000'000, about(0.01), about(0.02)}});
      const Route route = CodedRoute({0, 1e-4, about(0.1 + 0.15 * gain) / 4e6});
      if (!present) {
        present = *MakePlan(Policy::kWfbp, profile, route, 1, {}, {}, choices_);
        continue;
      }
      const Present old{.plan = *present, .margin = 0.005, .codec_stops = counts_stops ? stops : 0};
      const auto made = *MakeFasterPlan(Policy::kWfbp, profile, route, 2, old, {}, choices_);
      if (!made) continue;
      if (present->verdict.pays != made->verdict.pays) ++turns;
      if (present->verdict.pays && !made->verdict.pays) ++stops;
      present = *made;
    }
    return turns;
  }
  int MostTurns(bool counts_stops) {
    int most = 0;
    for (const double gain : {0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.05, 0.1}) {
      for (std::uint64_t seed = 1; seed <= 8; ++seed) {
        most = std::max(most, Turns(gain, seed, counts_stops));
      }
    }
    return most;
  }

  const std::vector<CodecChoice> choices_ = {Free("auto:int8"), Free("auto:int8")};
};

TEST_F(UnevenTest, WouldSwitchPlansToAndFroIfStopsDidNotCount) { EXPECT_GE(MostTurns(false), 15); }

TEST_F(UnevenTest, SwitchesPlansAFewTimesOnly) { EXPECT_LE(MostTurns(true), 7); }

// What peers have measured may be anything that CodecCost allows.
TEST(EncodedLine, IsACostLineForTheOddestCosts) {
  for (const double share : {kCodecShareMin, 0.5, 1.0}) {
    for (const double rate : {0.0, 5e-324, 1e-12, 0.999 * kCodecSecondsPerByteMax}) {
      for (const double s_per_byte : {1e-13, 1e-12, 1e-9, 0.5}) {
        const CodecCost cost{.codec = Codec::kLossless,
                             .share = share,
                             .encode_s_per_byte = rate,
                             .decode_s_per_byte = rate};
        ASSERT_TRUE(IsCodecCost(cost));
        const PiecewiseCost line = EncodedLine({0, 1e-4, s_per_byte}, cost, {});
        EXPECT_TRUE(CheckPiecewiseCost(line).ok()) << share << " " << rate << " " << s_per_byte;
        EXPECT_LE(line.pieces.back().from_bytes, std::uint64_t{1} << 40U);
      }
    }
  }
}

TEST(CodecCosts, AreNumbersThatACodecCanHave) {
  const auto is_cost = [](double share, double encode, double decode) {
    return IsCodecCost({.codec = Codec::kLossless,
                        .share = share,
                        .encode_s_per_byte = encode,
                        .decode_s_per_byte = decode});
  };
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  constexpr double kEndless = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(is_cost(0.5, 0, 0));
  for (const double share : {kNone, kEndless, -kEndless, -0.5, 0.0, 5e-324, 1e-9, 1.0001}) {
    EXPECT_FALSE(is_cost(share, 0, 0)) << share;
  }
  for (const double rate : {kNone, kEndless, -kEndless, -1e-12, kCodecSecondsPerByteMax}) {
    EXPECT_FALSE(is_cost(0.5, rate, 0)) << rate;
    EXPECT_FALSE(is_cost(0.5, 0, rate)) << rate;
  }
  EXPECT_FALSE(IsCodecCost({.codec = Codec::kNone, .share = 0.5}));
}

TEST(CodedRoutes, SplitBlocksOnlyWhereBytesCost) {
  Route route = RailsRoute({Affine(1e-4, 1e-9), Affine(1e-4, 2e-9)});
  route.stages[0].coded.push_back({kInt8, {Affine(1e-4, 1e-10), Affine(1e-4, 2e-10)}});
  EXPECT_TRUE(CheckRoute(route).ok());
  route.stages[0].coded[0].lines[1] = Affine(1e-4, 0);
  EXPECT_EQ(CheckRoute(route).code(), Code::kInvalidArgument);
}

// A small block goes over one rail only: what is cheap on all rails together may cost a lot there.
TEST(CodedRoutes, HaveABoundThatNoPlanUndercutsWhereRailsDiffer) {
  Route route = RailsRoute({Affine(2e-3, 6e-6), Affine(3, 1e-14)});
  route.stages[0].coded.push_back(
      {{.codec = Codec::kSign, .share = 0.04, .decode_s_per_byte = 2e-8},
       {Affine(2e-3, 2e-7), Affine(3, 2e-8)}});
  const Profile profile = ProfileOf({{16'512, 1e-3, 1e-3}, {115, 4e-6, 15}, {100, 4, 6e-4}});
  const std::vector<CodecChoice> choices(3, Codec::kSign);
  const Result<Plan> plan = MakePlan(Policy::kExact, profile, route, 1, {}, {}, choices);
  ASSERT_TRUE(plan.ok());
  EXPECT_LE(plan->lower_bound_s, plan->predicted_s * (1 + 1e-9));
}

// Scaled bytes of a gradient that nobody would encode are still a number.
TEST(CodedRoutes, HavePlansWhereEncodingCostsFarMoreThanSending) {
  Route route = AllReduceRoute(Affine(0, 1e-14));
  const CodecCost slow{.codec = Codec::kLossless, .share = 0.5, .encode_s_per_byte = 9e-4};
  route.stages[0].coded.push_back({slow, {EncodedLine({0, 0, 1e-14}, slow, {})}});
  const std::uint64_t large = std::uint64_t{1} << 38;
  const Profile profile = ProfileOf({{100, 1e-3, 1e-3}, {large, 1e-3, 1e-3}});
  const std::vector<CodecChoice> choices(2, Codec::kLossless);
  for (const Policy policy : kPolicies) {
    const Result<Plan> plan = MakePlan(policy, profile, route, 1, {}, {}, choices);
    ASSERT_TRUE(plan.ok()) << Name(policy);
    EXPECT_TRUE(CheckCoverage(*plan, MakeWorkload(profile)).ok()) << Name(policy);
  }
}

TEST(CanonicalVerdict, ReadsBackAndRefusesWhatIsNone) {
  const Profile profile = ProfileOf({{1'000'000, 0.01, 0.01}});
  const std::vector<CodecChoice> choices(1, Free("auto:int8"));
  const auto plan =
      MakePlan(Policy::kExact, profile, CodedRoute({0, 1e-4, 8e-9}), 1, {}, {}, choices);
  ASSERT_TRUE(plan.ok());
  const std::string text = Canonical(*plan);
  const auto back = ParseCanonical(text);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(Canonical(*back), text);
  EXPECT_EQ(back->verdict.cost, kInt8);
  const std::size_t at = text.find("codec_tried 3 0 1 ");
  ASSERT_NE(at, std::string::npos);
  for (const char* wrong : {"codec_tried 0 0 1 ", "codec_tried 3 1 1 ", "codec_tried 3 0 2 ",
                            "codec_tried 99 0 1 ", "codec_tried 3 256 1 "}) {
    std::string changed = text;
    changed.replace(at, std::string_view("codec_tried 3 0 1 ").size(), wrong);
    EXPECT_FALSE(ParseCanonical(changed).ok()) << wrong;
  }
}

}  // namespace
}  // namespace headrace::plan
