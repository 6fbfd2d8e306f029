#include "client/cli/replay/trace.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/unit/client/replay/two_ranks.h"

namespace headrace::replay {
namespace {

using Json = nlohmann::json;

std::vector<Json> Slices(const Json& trace, int process) {
  std::vector<Json> slices;
  for (const Json& slice : trace["traceEvents"]) {
    if (slice["ph"] == "X" && slice["pid"] == process) slices.push_back(slice);
  }
  return slices;
}

TEST(Trace, ShowsTheIterationOfTheBoardFromTheLastBeginOfItsBackwardPass) {
  const Json trace = Json::parse(TraceJson(ToyProfile(), TwoRanks()));
  EXPECT_EQ(trace["otherData"]["iteration"], 14);
  const std::vector<Json> first = Slices(trace, 0);
  const std::vector<Json> second = Slices(trace, 1);
  ASSERT_EQ(first.size(), 4U);
  ASSERT_EQ(second.size(), 4U);
  EXPECT_EQ(first[0]["name"], "backward linear");
  EXPECT_EQ(first[0]["ts"], -1000.0);  // rank 1 began a millisecond later
  EXPECT_EQ(second[0]["ts"], 0.0);
  EXPECT_EQ(second[0]["dur"], 20'000.0);
  EXPECT_EQ(second[2]["name"], "wait conv");
  EXPECT_NE(second[2]["tid"], second[3]["tid"]);
}

TEST(Trace, ShowsTheBlocksThatMoved) {
  const std::vector<Json> blocks = Slices(Json::parse(TraceJson(ToyProfile(), TwoRanks())), 2);
  ASSERT_EQ(blocks.size(), 1U);
  EXPECT_EQ(blocks[0]["name"], "block 1");
  EXPECT_EQ(blocks[0]["ts"], 21'000.0);
  EXPECT_EQ(blocks[0]["dur"], 9'000.0);
  EXPECT_EQ(blocks[0]["args"]["tensor"], "conv");
}

TEST(Trace, GivesBlocksThatMoveAtTheSameTimeRowsOfTheirOwn) {
  std::vector<RankResult> ranks = TwoRanks();
  std::vector<ipc::PlanBlockRow>& rows = ranks[0].board.blocks;
  rows[1].begin_ns = rows[0].end_ns - 1;
  rows[1].end_ns = rows[0].end_ns + 5;
  rows.push_back(rows[0]);
  rows[2].begin_ns = rows[0].end_ns;
  rows[2].end_ns = rows[0].end_ns + 1;
  const std::vector<Json> blocks = Slices(Json::parse(TraceJson(ToyProfile(), ranks)), 2);
  ASSERT_EQ(blocks.size(), 3U);
  EXPECT_NE(blocks[0]["tid"], blocks[1]["tid"]);
  EXPECT_EQ(blocks[0]["tid"], blocks[2]["tid"]);
}

TEST(Trace, ShowsTheLastIterationWithoutBlocksWhereTheBoardIsTooOld) {
  std::vector<RankResult> ranks = TwoRanks();
  ranks[0].board.plan->iteration = 9;
  const Json trace = Json::parse(TraceJson(ToyProfile(), ranks));
  EXPECT_EQ(trace["otherData"]["iteration"], 15);
  EXPECT_EQ(Slices(trace, 1).size(), 4U);
  EXPECT_TRUE(Slices(trace, 2).empty());
}

}  // namespace
}  // namespace headrace::replay
