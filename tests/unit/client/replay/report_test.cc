#include "client/cli/replay/report.h"

#include <gtest/gtest.h>

#include "tests/unit/client/replay/two_ranks.h"

namespace headrace::replay {
namespace {

Heading ToyHeading() { return {"toy", 2, 4096, DType::kFloat32, 2, 0.5, 0.2}; }

TEST(Report, TakesTheSlowestRankOfEachIteration) {
  const Summary summary = Summarize(TwoRanks());
  ASSERT_EQ(summary.iterations_s.size(), 3U);
  EXPECT_DOUBLE_EQ(summary.iterations_s[0], 0.1);
  EXPECT_DOUBLE_EQ(summary.iterations_s[1], 0.091);
  EXPECT_DOUBLE_EQ(summary.iterations_s[2], 0.3);
  EXPECT_DOUBLE_EQ(summary.median_s, 0.1);
  EXPECT_DOUBLE_EQ(summary.least_s, 0.091);
  EXPECT_DOUBLE_EQ(summary.p90_s, 0.3);
  EXPECT_DOUBLE_EQ(summary.backward_s, 0.051);
  EXPECT_DOUBLE_EQ(summary.forward_s, 0.039);
  EXPECT_DOUBLE_EQ(summary.waited_s, 0.001);
}

TEST(Report, SaysWhatWasMeasuredAndBesideItWhatWasPredicted) {
  EXPECT_EQ(
      ReportText(ToyHeading(), TwoRanks()),
      R"(toy: 2 gradients, 4.0 KiB, float32; 2 ranks; times x 0.5, jitter 20 %; 3 iterations after 12 to warm up.

TIME            MEDIAN
measured     100.00 ms  least 91.00 ms, nine of ten within 300.00 ms
predicted     80.00 ms  measured is 1.250 of it
lower bound   64.00 ms  measured is 1.562 of it
backward      51.00 ms  slowest rank
forward       39.00 ms  slowest rank, without waits
waited         1.00 ms  95.0 % of 20.00 ms of communication was hidden

Plan 2 by exact: 2 blocks, hash 0000000000000abc, in force since iteration 11.
Lane ucx0 (ucx): a stage costs 1300.0 us and 1.25 GB/s more.
Lane shm0 (shm): no cost line yet.
Every element was the exact average of all ranks in 5 iterations.
)");
}

TEST(Report, SaysWhenTheBoardOrTheValuesToldNothing) {
  std::vector<RankResult> ranks = TwoRanks();
  ranks.erase(ranks.begin());
  ranks[0].result.values_checked = 0;
  const std::string text = ReportText(ToyHeading(), ranks);
  EXPECT_NE(text.find("The board shows no plan of the job."), std::string::npos) << text;
  EXPECT_NE(text.find("Values were not looked at"), std::string::npos) << text;
  EXPECT_EQ(text.find("predicted"), std::string::npos) << text;
}

TEST(Report, HasTheSameAsJson) {
  const Json json = ReportJson(ToyHeading(), TwoRanks());
  EXPECT_TRUE(json["rank"].is_null());
  EXPECT_EQ(json["world_size"], 2);
  EXPECT_DOUBLE_EQ(json["measured_s"].get<double>(), 0.1);
  EXPECT_DOUBLE_EQ(json["predicted_s"].get<double>(), 0.08);
  EXPECT_DOUBLE_EQ(json["lower_bound_s"].get<double>(), 0.064);
  EXPECT_DOUBLE_EQ(json["hidden_share"].get<double>(), 0.95);
  EXPECT_DOUBLE_EQ(json["scale"].get<double>(), 0.5);
  EXPECT_DOUBLE_EQ(json["jitter"].get<double>(), 0.2);
  EXPECT_EQ(json["policy"], "exact");
  EXPECT_EQ(json["plan_version"], 2);
  EXPECT_EQ(json["plan_hash"], "0000000000000abc");
  EXPECT_EQ(json["blocks"], 2);
  EXPECT_EQ(json["iterations_s"].size(), 3U);
  EXPECT_EQ(json["warmup_iterations"], 12);
  EXPECT_EQ(json["values_checked"], 5);
  EXPECT_EQ(json["lanes"][0]["startup_ns"], 1'300'000);
  EXPECT_TRUE(json["lanes"][1]["bytes_per_s"].is_null());
}

TEST(Report, OfOneRankNamesItAndLeavesOpenWhatTheBoardDidNotTell) {
  std::vector<RankResult> ranks = TwoRanks();
  ranks.erase(ranks.begin());
  const Json json = ReportJson(ToyHeading(), ranks);
  EXPECT_EQ(json["rank"], 1);
  EXPECT_TRUE(json["predicted_s"].is_null());
  EXPECT_TRUE(json["hidden_share"].is_null());
  EXPECT_TRUE(json["policy"].is_null());
}

}  // namespace
}  // namespace headrace::replay
