// The parts of headrace-plan that golden files do not pin down case by case.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>

#include "ipc/profile.h"
#include "service/plan/tool/block_text.h"
#include "service/plan/tool/curves.h"
#include "service/plan/tool/curves_file.h"
#include "service/plan/tool/gantt.h"
#include "service/plan/tool/options.h"
#include "service/plan/tool/run.h"
#include "service/plan/tool/svg.h"
#include "service/plan/us_byte.h"
#include "tests/support/expect_text.h"
#include "tests/support/profile_json.h"
#include "tests/unit/plan/support.h"

namespace headrace::plan::tool {
namespace {

using plan::AloneLine;
using plan::Policy;
using plan::Profile;

// Elements of one byte; r_1 = 4, r_0 = 8; tails 2 and 1.

std::size_t Count(const std::string& text, const std::string& piece) {
  std::size_t count = 0;
  for (std::size_t at = text.find(piece); at != std::string::npos; at = text.find(piece, at + 1)) {
    ++count;
  }
  return count;
}

TEST(SizeInWords, HasThreeDigitsOrSo) {
  EXPECT_EQ(Size(0), "0 B");
  EXPECT_EQ(Size(999), "999 B");
  EXPECT_EQ(Size(1000), "1.00 KB");
  EXPECT_EQ(Size(999'994), "999.99 KB");
  EXPECT_EQ(Size(999'995), "1.00 MB");
  EXPECT_EQ(Size(8'190'000), "8.19 MB");
  EXPECT_EQ(Size(12'345'678'901), "12.35 GB");
}

TEST(BlockInWords, JoinsWholeNeighbours) {
  const Profile profile =
      plan::ProfileOf({{1, 0, 0}, {2, 0, 0}, {3, 0, 0}, {4, 0, 0}}, DType::kUInt8);
  const auto contents = [&](const std::vector<plan::TensorRange>& ranges) {
    plan::PlannedBlock block;
    block.ranges = ranges;
    return Contents(block, profile);
  };
  EXPECT_EQ(contents({{1, 0, 2}}), "t1");
  EXPECT_EQ(contents({{1, 0, 2}, {0, 0, 1}}), "t0, t1");
  EXPECT_EQ(contents({{2, 0, 3}, {1, 0, 2}, {0, 0, 1}}), "t0 .. t2 (3 tensors)");
  EXPECT_EQ(contents({{0, 0, 1}, {2, 0, 3}}), "t0, t2");
}

TEST(BlockInWords, TellsWhichPieceOfATensorItHas) {
  const Profile profile = plan::ProfileOf({{1, 0, 0}, {6, 0, 0}}, DType::kUInt8);
  const auto contents = [&](std::uint64_t offset, std::uint64_t bytes) {
    plan::PlannedBlock block;
    block.ranges = {{1, offset, bytes}};
    return Contents(block, profile);
  };
  EXPECT_EQ(contents(0, 2), "t1 (first 2 B of 6 B)");
  EXPECT_EQ(contents(2, 2), "t1 (middle 2 B of 6 B)");
  EXPECT_EQ(contents(4, 2), "t1 (last 2 B of 6 B)");
}

TEST(Svg, EscapesWhatNamesMayHold) {
  Svg svg(10, 10);
  svg.Text(0, 0, "a<b>&\"c\"\n");
  EXPECT_NE(svg.Finish().find("a&lt;b&gt;&amp;&quot;c&quot; "), std::string::npos);
}

TEST(Ticks, AreRoundAndReachTheEnd) {
  EXPECT_EQ(RoundTicks(10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(RoundTicks(0.9, 3).size(), 2u);  // 0 and 0.5
  EXPECT_EQ(RoundTicks(0, 5), (std::vector<double>{0}));
}

TEST(Colours, GoFromWarmToCoolAndStayInside) {
  EXPECT_EQ(ScaleColour(0), "#e69f00");
  EXPECT_EQ(ScaleColour(1), "#0072b2");
  EXPECT_EQ(ScaleColour(-5), ScaleColour(0));
  EXPECT_EQ(ScaleColour(7), ScaleColour(1));
}

Gantt GanttOf(Policy policy) {
  const plan::Route route = plan::AllReduceRoute(plan::Affine(1, 1));
  const plan::Plan made = *plan::MakePlan(policy, kTwo, route);
  return MakeGantt("two", kTwo, route, made, *plan::Simulate(kTwo, route, made, {}));
}

// wfbp: [4, 10] and [10, 13] on the lane, forward from 13 to 15; one column a second.
TEST(GanttText, ShowsOneCharacterPerSlice) {
  EXPECT_EQ(GanttText(GanttOf(Policy::kWfbp), 15),
            "backward  <<<<<<<<\n"
            "network       000000111\n"
            "forward                >>\n"
            "          0  15000.000 ms\n");
}

// us-byte with units of a byte: [4, 8], tensor 0 in [8, 11], the rest of tensor 1 until 14. The
// forward pass runs tensor 0 from 11 to 12 and waits.
TEST(GanttText, ShowsWaitsInsideARow) {
  const plan::Route route = plan::AllReduceRoute(plan::Affine(1, 1));
  const plan::Workload work = plan::MakeWorkload(kTwo);
  const plan::Draft draft = plan::UsByte(work, plan::Affine(1, 1), {1, {0, 1}});
  const plan::Plan made =
      plan::Finish(Policy::kUsByte, draft, plan::MakeTimetable(work, route, draft), 0);
  const Gantt gantt = MakeGantt("two", kTwo, route, made, *plan::Simulate(kTwo, route, made, {}));
  EXPECT_EQ(GanttText(gantt, 15),
            "backward  <<<<<<<<\n"
            "network       0000111222\n"
            "forward              >..>\n"
            "          0  15000.000 ms\n");
}

TEST(GanttSvg, DrawsEveryTensorTwiceAndEveryBlockOnce) {
  const std::string svg = GanttSvg(GanttOf(Policy::kWfbp));
  EXPECT_EQ(Count(svg, "<title>t0</title>"), 2u);
  EXPECT_EQ(Count(svg, "<title>t1</title>"), 2u);
  EXPECT_EQ(Count(svg, "<title>block "), 2u);
}

TEST(ChartSvg, DrawsACurveAndALegendPerPolicy) {
  Chart chart{"title", "x", "y", {{"left", {}}, {"right", {}}}};
  for (Panel& panel : chart.panels) {
    panel.curves = {{"wfbp", {{1, 1}, {10, 1}}}, {"exact", {{1, 1}, {10, 2}}}};
  }
  const std::string svg = ChartSvg(chart);
  EXPECT_EQ(Count(svg, "<polyline"), 2u * 2 + 2);
  EXPECT_EQ(Count(svg, ">exact</text>"), 1u);
}

TEST(ChartSvg, StartsARowOfPanelsAfterThree) {
  Chart chart;
  chart.marks = true;
  for (const char* title : {"a", "b", "c", "d"}) {
    chart.panels.push_back({title, {{"odd", {{1, 1}, {10, 2}}}}});
  }
  const std::string svg = ChartSvg(chart);
  EXPECT_EQ(Count(svg, "<circle"), 4u * 2 + 1);
  EXPECT_EQ(Count(svg, ">odd</text>"), 1u);
  EXPECT_GT(svg.find(">d</text>"), svg.find(">a</text>"));
  EXPECT_NE(svg.find(R"(<svg xmlns="http://www.w3.org/2000/svg" width="1250")"), std::string::npos)
      << svg.substr(0, 200);
}

TEST(CurvesFile, SortsPointsAndKeepsTheOrderOfNames) {
  const auto panels = ParseCurves("panel,curve,x,y\nb,one,2,4\na,two,1,1\nb,one,1,3\n");
  ASSERT_TRUE(panels.ok()) << panels.error().text();
  ASSERT_EQ(panels->size(), 2u);
  EXPECT_EQ((*panels)[0].title, "b");
  EXPECT_EQ((*panels)[0].curves[0].points,
            (std::vector<std::pair<double, double>>{{1, 3}, {2, 4}}));
}

TEST(CurvesFile, RefusesWithLineAndField) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "line 1: "},
      {"x,y\n", "line 1: "},
      {"panel,curve,x,y\n", "line 2: "},
      {"panel,curve,x,y\na,b,1\n", "line 2: "},
      {"panel,curve,x,y\na,b,1,2,3\n", "line 2: "},
      {"panel,curve,x,y\na,b,1,2\n,b,1,2\n", "line 3: panel: "},
      {"panel,curve,x,y\na,b,1,2\na,b,0,2\n", "line 3: x: "},
      {"panel,curve,x,y\na,b,1,nan\n", "line 2: y: "},
      {"panel,curve,x,y\na,b,1,2e\n", "line 2: y: "},
  };
  for (const auto& [text, where] : cases) {
    const auto panels = ParseCurves(text);
    ASSERT_FALSE(panels.ok()) << text;
    EXPECT_EQ(panels.error().code(), Code::kInvalidArgument);
    EXPECT_TRUE(panels.error().text().starts_with(where)) << panels.error().text();
  }
}

TEST(NetworkOptions, GiveTheCostLineOrTheRatio) {
  NetworkOptions options;
  EXPECT_FALSE(MakeRoute(options, kTwo).ok());
  options.startup_us = 1e6;
  EXPECT_FALSE(MakeRoute(options, kTwo).ok());
  options.ns_per_byte = 1e9;
  EXPECT_EQ(*MakeRoute(options, kTwo), plan::AllReduceRoute(plan::Affine(1, 1)));
  options.ratio = 0.7;  // of 10 s, for 7 bytes
  EXPECT_NEAR(AloneLine(*MakeRoute(options, kTwo)).pieces[0].s_per_byte, 1, 1e-12);
}

TEST(NetworkOptions, GiveServersTheirOwnLines) {
  NetworkOptions options;
  options.architecture = "ps";
  options.startup_us = 1e6;
  options.ns_per_byte = 1e9;
  const plan::PiecewiseCost push = plan::Affine(1, 1);
  EXPECT_EQ(*MakeRoute(options, kTwo),
            plan::ParameterServerRoute(push, push, plan::Placement::kExtra));
  options.pull_startup_us = 2e6;
  options.pull_ns_per_byte = 3e9;
  options.placement = "colocated";
  EXPECT_EQ(*MakeRoute(options, kTwo),
            plan::ParameterServerRoute(push, plan::Affine(2, 3), plan::Placement::kColocated));
}

TEST(NetworkOptions, WorkOutAClustersLines) {
  NetworkOptions options;
  options.nodes = 4;
  options.gpus_per_node = 2;
  EXPECT_EQ(MakeRoute(options, kTwo)->stages.size(), 3u);
  options.algorithm = "ring";
  EXPECT_EQ(MakeRoute(options, kTwo)->stages.size(), 1u);
  options.architecture = "ps";
  EXPECT_EQ(MakeRoute(options, kTwo)->stages.size(), 4u);
  options.gpus_per_node = 8192;
  EXPECT_FALSE(MakeRoute(options, kTwo).ok());
}

TEST(PolicyList, TakesNamesAndAll) {
  EXPECT_EQ(ReadPolicies("all")->size(), std::size(plan::kPolicies) - 1) << "all but auto";
  EXPECT_EQ(*ReadPolicies("exact,wfbp"), (std::vector<Policy>{Policy::kExact, Policy::kWfbp}));
  EXPECT_FALSE(ReadPolicies("").ok());
  EXPECT_FALSE(ReadPolicies("exact,").ok() && ReadPolicies("exact,,wfbp").ok());
}

TEST(RunPolicy, AveragesOverRuns) {
  const plan::Route route = plan::AllReduceRoute(plan::Affine(1, 1));
  const auto seconds = [&](std::uint64_t seed, std::uint32_t runs) {
    return RunPolicy(Policy::kWfbp, kTwo, route, {}, {0.2, seed, runs})->iteration_s;
  };
  EXPECT_DOUBLE_EQ(seconds(5, 2), (seconds(5, 1) + seconds(6, 1)) / 2);
}

TEST(Files, AreReadBackAndErrorsNameThem) {
  const std::filesystem::path path =
      std::filesystem::path(testing::TempDir()) / "headrace_plan_tool_test.json";
  ASSERT_TRUE(WriteFile(path.string(), plan::ProfileJson(kTwo)).ok());
  EXPECT_EQ(ReadNamedProfile(path.string(), 1)->profile, kTwo);
  const Profile half = ReadNamedProfile(path.string(), 0.5)->profile;
  EXPECT_DOUBLE_EQ(half.tensors[0].backward_s, kTwo.tensors[0].backward_s / 2);
  EXPECT_DOUBLE_EQ(half.tensors[1].forward_s, kTwo.tensors[1].forward_s / 2);
  // Times that are too long once they are multiplied.
  const Result<NamedProfile> long_times = ReadNamedProfile(path.string(), 1e9);
  ASSERT_FALSE(long_times.ok());
  EXPECT_EQ(long_times.error().code(), Code::kInvalidArgument);
  std::filesystem::remove(path);
  EXPECT_TEXT(ReadNamedProfile("/absent/file", 1).error().text());
  EXPECT_FALSE(WriteFile("/absent/file", "x").ok());
}

}  // namespace
}  // namespace headrace::plan::tool
