// What is agreed has one text and one hash, and both tell any difference.
#include "service/cluster/agreement.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>
#include <utility>

#include "service/cluster/names.h"
#include "tests/support/expect_text.h"

namespace headrace::service {
namespace {

Agreement Example() {
  Agreement agreement;
  agreement.job = "train";
  agreement.world_size = 3;
  agreement.epoch = 2;
  agreement.key = 0x1234;
  agreement.block_bytes = 4096;
  agreement.nodes = {{.name = "a", .ranks = {0, 2}, .addresses = {"A0", "A1"}},
                     {.name = "b", .ranks = {1}, .addresses = {"B0", "B1"}},
                     {.name = "s", .ranks = {}, .addresses = {"S0", "S1"}}};
  agreement.servers_count = 1;
  agreement.costs = {{.startup_s = 1e-5, .s_per_byte = 1e-9},
                     {.startup_s = 2e-5, .s_per_byte = 2e-9}};
  return agreement;
}

TEST(Agreement, EveryDifferenceChangesTheHash) {
  const std::vector<std::function<void(Agreement&)>> changes = {
      [](Agreement& each) { each.job = "other"; },
      [](Agreement& each) { each.world_size = 4; },
      [](Agreement& each) { each.epoch = 3; },
      [](Agreement& each) { each.key = 0x1235; },
      [](Agreement& each) { each.plan_version = 2; },
      [](Agreement& each) { each.block_bytes = 8192; },
      [](Agreement& each) { each.verify = 1; },
      [](Agreement& each) { each.algorithm = transport::Algorithm::kRing; },
      [](Agreement& each) { each.nodes[0].name = "x"; },
      [](Agreement& each) { each.nodes[0].ranks = {0}; },
      [](Agreement& each) { each.nodes[0].control = "10.0.0.9:7733"; },
      [](Agreement& each) { each.leader = "x"; },
      [](Agreement& each) { each.nodes[1].addresses[1] = "B2"; },
      [](Agreement& each) { std::swap(each.nodes[0], each.nodes[1]); },
      [](Agreement& each) { each.servers_count = 0; },
      [](Agreement& each) { each.costs[1].startup_s = 3e-5; },
      [](Agreement& each) { each.costs[1].s_per_byte = std::nextafter(2e-9, 1); },
      [](Agreement& each) { each.costs.pop_back(); },
      [](Agreement& each) { each.nccl_lanes = 1; },
      [](Agreement& each) { each.nccl_lanes = 2; }};
  std::set<std::uint64_t> hashes{HashOf(Example())};
  for (const auto& change : changes) {
    Agreement changed = Example();
    change(changed);
    EXPECT_TRUE(hashes.insert(HashOf(changed)).second) << CanonicalText(changed);
  }
  EXPECT_EQ(HashOf(Example()), *hashes.find(HashOf(Example())));
}

TEST(Agreement, AnAddressCannotPassForAnotherLine) {
  Agreement honest = Example();
  Agreement forged = Example();
  forged.nodes[0].addresses[0] = "A0\nat 4131";
  EXPECT_NE(CanonicalText(honest), CanonicalText(forged));
  EXPECT_EQ(CanonicalText(forged).find("A0"), std::string::npos);
}

TEST(Agreement, GivesEachLaneTheAddressesOfThatLane) {
  const transport::GroupOptions group = GroupOf(Example(), 1, 1, 7);
  EXPECT_EQ(group.group, 7U);
  EXPECT_EQ(group.self, 1U);
  EXPECT_EQ(group.key, 0x1234U);
  EXPECT_EQ(group.epoch, 2U);
  EXPECT_EQ(group.servers_count, 1U);
  ASSERT_EQ(group.members.size(), 3U);
  EXPECT_EQ(group.members[0].address, "A1");
  EXPECT_EQ(group.members[2].address, "S1");
  EXPECT_EQ(group.members[1].name, "b");
}

TEST(Agreement, TellsDispatchWhoHasWhichRanks) {
  const JobNodes nodes = NodesOf(Example(), 1);
  EXPECT_EQ(nodes.self, 1U);
  EXPECT_EQ(nodes.data_nodes_count(), 2U);
  EXPECT_EQ(nodes.nodes[0].ranks, (std::vector<std::uint32_t>{0, 2}));
  EXPECT_EQ(nodes.costs, Example().costs);
  EXPECT_EQ(nodes.block_bytes, 4096U);
  EXPECT_EQ(nodes.nccl_lanes, 0U);
  Agreement by_nccl = Example();
  by_nccl.nccl_lanes = 2;
  EXPECT_EQ(NodesOf(by_nccl, 1).nccl_lanes, 2U);
}

TEST(Agreement, TheSlowestCounts) {
  std::vector<transport::CostLine> slowest(1);
  MergeCosts(slowest, {{.startup_s = 3e-5, .s_per_byte = 1e-9}});
  MergeCosts(slowest, {{.startup_s = 1e-5, .s_per_byte = 5e-9}});
  EXPECT_EQ(slowest[0], (transport::CostLine{.startup_s = 3e-5, .s_per_byte = 5e-9}));
}

TEST(Names, ShortenLongLists) {
  EXPECT_TEXT(MissingRanks(std::vector<std::uint32_t>{3}), "rank 3");
  EXPECT_TEXT(MissingRanks(std::vector<std::uint32_t>{2, 3}), "ranks 2");
  std::vector<std::uint32_t> many(20);
  for (std::uint32_t rank = 0; rank < 20; ++rank) many[rank] = rank;
  EXPECT_TEXT(MissingRanks(many), "ranks 0");
  EXPECT_EQ(NodeList({"b"}), "node b");
  EXPECT_EQ(NodeList({"b", "c"}), "nodes b, c");
}

}  // namespace
}  // namespace headrace::service
