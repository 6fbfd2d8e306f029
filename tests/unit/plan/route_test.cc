// Cost lines, rails, and blocks that pass several lanes in a pipeline.
#include "service/plan/route.h"

#include <gtest/gtest.h>

#include <limits>

#include "service/plan/draft.h"
#include "tests/support/expect_text.h"
#include "tests/unit/plan/support.h"

namespace headrace::plan {
namespace {

TEST(PiecewiseCost, TakesThePieceThatHoldsTheBytes) {
  const PiecewiseCost line{{{0, 1, 2}, {100, 50, 1}}};
  EXPECT_DOUBLE_EQ(line.Seconds(0), 1);
  EXPECT_DOUBLE_EQ(line.Seconds(99), 199);
  EXPECT_DOUBLE_EQ(line.Seconds(100), 150);
}

TEST(PiecewiseCost, GivesTheMostBytesThatEndInTime) {
  const PiecewiseCost line{{{0, 1, 2}, {100, 50, 1}}};
  EXPECT_DOUBLE_EQ(line.BytesWithin(0.5), 0);
  EXPECT_DOUBLE_EQ(line.BytesWithin(21), 10);
  // 150 s carry 74.5 bytes of the first piece and 100 of the second.
  EXPECT_DOUBLE_EQ(line.BytesWithin(150), 100);
  EXPECT_DOUBLE_EQ(line.BytesWithin(160), 110);
  EXPECT_EQ(Affine(1, 0).BytesWithin(1), std::numeric_limits<double>::infinity());
}

TEST(PiecewiseCost, AddsUpAndComparesPieceByPiece) {
  Random random(21);
  const Profile profile = RandomProfile(random, 10, 100'000);
  for (int instance = 0; instance < 300; ++instance) {
    PiecewiseCost lines[2];
    for (PiecewiseCost& line : lines) {
      line = PiecewiseCost{{RandomLine(random, profile), RandomLine(random, profile)}};
      line.pieces[1].from_bytes = 1 + Below(random, 100'000);
    }
    const PiecewiseCost sum = Sum(lines[0], lines[1]);
    const PiecewiseCost slower = Slower(lines[0], lines[1]);
    for (int probe = 0; probe < 50; ++probe) {
      const std::uint64_t bytes = Below(random, 200'000);
      const double left = lines[0].Seconds(bytes);
      const double right = lines[1].Seconds(bytes);
      ASSERT_NEAR(sum.Seconds(bytes), left + right, 1e-12);
      ASSERT_NEAR(slower.Seconds(bytes), std::max(left, right), 1e-12);
    }
  }
}

TEST(PiecewiseCost, StaysAboveTheLinesBelow) {
  Random random(22);
  const Profile profile = RandomProfile(random, 10, 100'000);
  for (int instance = 0; instance < 300; ++instance) {
    PiecewiseCost line{{RandomLine(random, profile), RandomLine(random, profile)}};
    line.pieces[1].from_bytes = 1 + Below(random, 100'000);
    for (const CostPiece& below : LinesBelow(line, 200'000)) {
      ASSERT_GE(below.startup_s, 0);
      for (int probe = 0; probe < 50; ++probe) {
        const std::uint64_t bytes = 1 + Below(random, 200'000);
        ASSERT_LE(below.Seconds(static_cast<double>(bytes)), line.Seconds(bytes) * (1 + kRounding));
      }
    }
  }
}

TEST(PiecewiseCost, IsRefusedWithTheReason) {
  const auto reason = [](const PiecewiseCost& line) {
    const Error error = CheckPiecewiseCost(line).error();
    EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.text();
    return error.text();
  };
  EXPECT_TEXT(reason({}));
  EXPECT_TEXT(reason({{{1, 0, 0}}}));
  EXPECT_TEXT(reason({{{0, 0, 0}, {0, 0, 0}}}), "piece 1");
  EXPECT_TEXT(reason(Affine(-1, 0)), "piece 0");
  EXPECT_TEXT(reason(Affine(0, std::numeric_limits<double>::quiet_NaN())), "piece 0");
  for (const double no_time : {2 * kStartupMax, std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(CheckPiecewiseCost(Affine(no_time, 0)).code(), Code::kInvalidArgument) << no_time;
  }
  for (const double no_rate : {5e-324, kSecondsPerByteLeast / 2, 2 * kSecondsPerByteMax, 1e300}) {
    EXPECT_EQ(CheckPiecewiseCost(Affine(0, no_rate)).code(), Code::kInvalidArgument) << no_rate;
  }
  EXPECT_TRUE(CheckPiecewiseCost(Affine(kStartupMax, kSecondsPerByteMax)).ok());
  EXPECT_TRUE(CheckPiecewiseCost(Affine(0, kSecondsPerByteLeast)).ok());
}

// tau = (5 + 0/1 + 1/1) / (1/1 + 1/1) = 3: shares of 3 and 2.
TEST(Rails, EndTogether) {
  const Route route = RailsRoute({Affine(0, 1), Affine(1, 1)});
  EXPECT_EQ(Shares(route.stages[0], 5, 1), (std::vector<std::uint64_t>{3, 2}));
  EXPECT_DOUBLE_EQ(StageSeconds(route.stages[0], 5, 1), 3);
}

// tau would be (1 + 1)/2 = 1, which is not above the second lane's startup.
TEST(Rails, LeaveOutALaneThatStartsTooLate) {
  const Route route = RailsRoute({Affine(0, 1), Affine(1, 1)});
  EXPECT_EQ(Shares(route.stages[0], 1, 1), (std::vector<std::uint64_t>{1, 0}));
}

TEST(Rails, ShareWholeElementsOfRandomBlocks) {
  Random random(23);
  const Profile profile = RandomProfile(random, 10, 1'000'000);
  for (int instance = 0; instance < 500; ++instance) {
    std::vector<PiecewiseCost> lines;
    for (std::uint64_t rail = 0; rail < 2 + Below(random, 4); ++rail) {
      lines.push_back({{RandomLine(random, profile)}});
    }
    const Stage stage = RailsRoute(lines).stages[0];
    const std::uint64_t bytes = 4 * (1 + Below(random, 1'000'000));
    const std::vector<std::uint64_t> shares = Shares(stage, bytes, 4);
    std::uint64_t sum = 0;
    double element_s = 0;  // what an element costs on the slowest rail
    for (std::size_t rail = 0; rail < shares.size(); ++rail) {
      EXPECT_EQ(shares[rail] % 4, 0u);
      sum += shares[rail];
      element_s = std::max(element_s, 4 * lines[rail].pieces[0].s_per_byte);
    }
    ASSERT_EQ(sum, bytes);
    // The line of the stage is the time without rounding to elements.
    const double together_s = StageCost(stage).Seconds(bytes);
    const double seconds = StageSeconds(stage, bytes, 4);
    ASSERT_GE(seconds, together_s * (1 - 1e-9));
    ASSERT_LE(seconds, together_s * (1 + 1e-9) + element_s);
  }
}

// One tensor of 4 bytes after another; no backward time to wait for.
Draft EqualBlocks(std::uint32_t count) {
  Draft draft;
  for (std::uint32_t l = 0; l < count; ++l) {
    draft.Open();
    draft.Append(l, 0, 4);
  }
  return draft;
}

Workload EqualTensors(std::size_t count) {
  return MakeWorkload(ProfileOf(std::vector<Row>(count, {4, 0, 0}), DType::kUInt8));
}

// The useful cost of a block is that of the slower lane; one fill comes on top.
TEST(Pipeline, CostsTheSlowerLanePlusOneFill) {
  const Route route = ParameterServerRoute(Affine(0, 1), Affine(0, 0.5), Placement::kExtra);
  const Timetable table = MakeTimetable(EqualTensors(3), route, EqualBlocks(3));
  EXPECT_EQ(table.begin_s, (std::vector<double>{0, 4, 8}));
  EXPECT_EQ(table.end_s, (std::vector<double>{6, 10, 14}));  // 3 * 4 and a fill of 2
  EXPECT_EQ(SteadyLine(route), Affine(0, 1));
  EXPECT_EQ(AloneLine(route), Affine(0, 1.5));
}

TEST(Pipeline, TakesTurnsOnTheLaneOfColocatedServers) {
  const Route route = ParameterServerRoute(Affine(0, 1), Affine(0, 0.5), Placement::kColocated);
  const Timetable table = MakeTimetable(EqualTensors(2), route, EqualBlocks(2));
  // The pull of the first block goes before the push of the second.
  EXPECT_EQ(table.begin_s, (std::vector<double>{0, 6}));
  EXPECT_EQ(table.end_s, (std::vector<double>{6, 12}));
  EXPECT_EQ(SteadyLine(route), Affine(0, 1.5));
}

// Each stage lasts 2. While one block is on the network another is inside the node; where a gather
// and a scatter wait for the same lane, the earlier block goes first.
TEST(Pipeline, RunsTwoLevelsAtTheSameTime) {
  const Route route = HierarchyRoute(Affine(2, 0), Affine(2, 0), Affine(2, 0));
  const Timetable table = MakeTimetable(EqualTensors(3), route, EqualBlocks(3));
  EXPECT_EQ(table.begin_s, (std::vector<double>{0, 2, 8}));
  EXPECT_EQ(table.end_s, (std::vector<double>{6, 8, 14}));
}

TEST(Pipeline, KeepsTheLimitOfBlocksInFlight) {
  const Route route = ParameterServerRoute(Affine(0, 1), Affine(0, 0.5), Placement::kExtra);
  Draft draft = EqualBlocks(3);
  draft.in_flight_max = 1;
  const Timetable table = MakeTimetable(EqualTensors(3), route, draft);
  EXPECT_EQ(table.begin_s, (std::vector<double>{0, 6, 12}));
}

TEST(Route, IsRefusedWithTheReason) {
  const auto reason = [](const Route& route) {
    const Error error = CheckRoute(route).error();
    EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.text();
    return error.text();
  };
  EXPECT_TEXT(reason({}));
  EXPECT_TEXT(reason({{}, {{"a", {{0, Affine(0, 1)}}}}}));
  EXPECT_TEXT(reason({{"x"}, {{"a", {}}}}));
  EXPECT_TEXT(reason({{"x"}, {{"a", {{1, Affine(0, 1)}}}}}));
  EXPECT_TEXT(reason({{"x"}, {{"a", {{0, Affine(0, 1)}, {0, Affine(0, 1)}}}}}));
  EXPECT_TEXT(reason({{"x", "y"}, {{"a", {{0, Affine(0, 1)}, {1, Affine(0, 0)}}}}}));
}

}  // namespace
}  // namespace headrace::plan
