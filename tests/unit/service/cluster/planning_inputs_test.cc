// The times and cost lines of several nodes, merged.
#include "service/cluster/planning_inputs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "service/plan/planner.h"
#include "tests/unit/service/cluster/plans.h"
#include "transport/probe/line_fit.h"

namespace headrace::support {
namespace {

using service::JobShape;
using service::NodeSeen;

constexpr double kBlockBytes = 1e6;
constexpr transport::CostLine kAgreed{.startup_s = 1e-3, .s_per_byte = 4e-9};

JobShape Nodes(std::size_t count, std::uint32_t servers = 0) {
  JobShape shape{.nodes = {}, .servers_count = servers, .agreed = {kAgreed}};
  for (std::uint32_t rank = 0; rank < count; ++rank) {
    shape.nodes.push_back({.name = "n" + std::to_string(rank), .ranks = {rank}});
  }
  return shape;
}

NodeSeen Times(std::vector<double> release_s, std::vector<double> forward_s) {
  NodeSeen seen;
  seen.times.release_s = std::move(release_s);
  seen.times.forward_s = std::move(forward_s);
  return seen;
}

NodeSeen Costs(std::vector<transport::CostLine> costs) {
  NodeSeen seen;
  seen.costs = std::move(costs);
  return seen;
}

std::vector<double> Backward(const plan::Profile& profile) {
  std::vector<double> seconds;
  for (const plan::Tensor& tensor : profile.tensors) seconds.push_back(tensor.backward_s);
  return seconds;
}

std::vector<double> Forward(const plan::Profile& profile) {
  std::vector<double> seconds;
  for (const plan::Tensor& tensor : profile.tensors) seconds.push_back(tensor.forward_s);
  return seconds;
}

TEST(MergeTimes, WithoutTimesEverythingTakesNone) {
  const plan::Profile profile = MergeTimes("train", LayoutOf({4, 5}), {});
  EXPECT_EQ(profile.model, "train");
  EXPECT_EQ(profile.tensors[1].elements, 5U);
  EXPECT_EQ(Backward(profile), (std::vector<double>{0, 0}));
  EXPECT_EQ(Forward(profile), (std::vector<double>{0, 0}));
  EXPECT_TRUE(CheckProfile(profile).ok());
}

TEST(MergeTimes, GradientsOfSeveralTypesCountInUnitsOfTheWidest) {
  service::Layout layout = LayoutOf({4, 5, 6});
  layout.tensors[0].dtype = DType::kBFloat16;
  layout.tensors[1].dtype = DType::kBFloat16;
  const plan::Profile profile = MergeTimes("", layout, {});
  EXPECT_EQ(profile.dtype, DType::kFloat32);
  EXPECT_EQ(profile.tensors[0].elements, 2U);
  EXPECT_EQ(profile.tensors[1].elements, 3U);  // 10 bytes
  EXPECT_EQ(profile.tensors[2].elements, 6U);
}

TEST(MergeTimes, AGradientIsReleasedWhenTheLastNodeHasReleasedIt) {
  const std::vector<NodeSeen> seen = {Times({8, 4, 1}, {0, 0, 0}), Times({6, 5, 2}, {0, 0, 0})};
  const plan::Profile profile = MergeTimes("", LayoutOf({4, 5, 6}), seen);
  EXPECT_EQ(Backward(profile), (std::vector<double>{3, 3, 2})) << "released at 8, 5, 2";
}

TEST(MergeTimes, AGradientThatIsReadyBeforeOneBehindItCountsAsReadyTogetherWithIt) {
  const std::vector<NodeSeen> seen = {Times({8, 1, 4}, {0, 0, 0})};
  const plan::Profile profile = MergeTimes("", LayoutOf({4, 5, 6}), seen);
  EXPECT_EQ(Backward(profile), (std::vector<double>{4, 0, 4})) << "released at 8, 4, 4";
}

TEST(MergeTimes, FromEachGradientOnTheForwardPassTakesAsLongAsOnTheSlowestNode) {
  // From each on: 1, 3, 6 and 5, 5, 5.
  const std::vector<NodeSeen> seen = {Times({0, 0, 0}, {3, 2, 1}), Times({0, 0, 0}, {0, 0, 5})};
  const plan::Profile profile = MergeTimes("", LayoutOf({4, 5, 6}), seen);
  EXPECT_EQ(Forward(profile), (std::vector<double>{1, 0, 5}));
}

TEST(BlockCost, IsThatOfTheBytesThatANodeSends) {
  const auto of = [](const JobShape& shape) {
    const plan::CostPiece piece = BlockCost(kAgreed, shape).pieces.at(0);
    EXPECT_EQ(piece.startup_s, kAgreed.startup_s);
    return piece.s_per_byte / kAgreed.s_per_byte;
  };
  EXPECT_DOUBLE_EQ(of(Nodes(2)), 1);
  EXPECT_DOUBLE_EQ(of(Nodes(4)), 1.5);
  EXPECT_DOUBLE_EQ(of(Nodes(4, 1)), 1) << "each pushes its gradients once and pulls the sums";
}

TEST(RouteOf, OneNodeMovesBlocksOnTheLaneInsideIt) {
  JobShape shape = Nodes(1);
  shape.nodes[0].ranks = {0, 1};
  const std::vector<NodeSeen> seen = {Costs({{.startup_s = 1e-5, .s_per_byte = 1e-10}})};
  const plan::Route route = RouteOf(shape, seen, kBlockBytes);
  EXPECT_TRUE(route.serial());
  EXPECT_EQ(route.stages[0].rails[0].line, plan::Affine(1e-5, 1e-10));
  EXPECT_TRUE(CheckRoute(RouteOf(shape, {}, kBlockBytes)).ok()) << "nothing seen yet";
}

TEST(RouteOf, BetweenNodesTheFastestLineThatWasSeenCounts) {
  const std::vector<NodeSeen> seen = {Costs({{}, {.startup_s = 2e-3, .s_per_byte = 8e-9}}),
                                      Costs({{}, {.startup_s = 3e-3, .s_per_byte = 5e-9}})};
  const plan::Route route = RouteOf(Nodes(2), seen, kBlockBytes);
  EXPECT_TRUE(route.serial());
  EXPECT_EQ(route.stages[0].rails[0].line, plan::Affine(3e-3, 5e-9)) << "for a megabyte";
  EXPECT_EQ(RouteOf(Nodes(2), seen, 1e3).stages[0].rails[0].line, plan::Affine(2e-3, 8e-9))
      << "for a kilobyte";
}

TEST(RouteOf, TheAgreedLineStandsWhereNothingWasSeen) {
  const transport::CostLine unseen{.startup_s = 0, .s_per_byte = transport::kSecondsPerByteMin};
  for (const auto& seen : {std::vector<NodeSeen>{}, {Costs({})}, {Costs({unseen, unseen})}}) {
    EXPECT_EQ(RouteOf(Nodes(2), seen, kBlockBytes).stages[0].rails[0].line,
              plan::Affine(1e-3, 4e-9));
  }
}

TEST(RouteOf, SeveralRanksOnANodeAddTheStagesInsideAtThePriceOfTheSlowestNode) {
  JobShape shape = Nodes(2);
  shape.nodes[1].ranks = {1, 2};
  const std::vector<NodeSeen> seen = {Costs({{.startup_s = 1e-5, .s_per_byte = 1e-10}, kAgreed}),
                                      Costs({{.startup_s = 3e-5, .s_per_byte = 3e-10}, kAgreed})};
  const plan::Route route = RouteOf(shape, seen, kBlockBytes);
  EXPECT_TRUE(CheckRoute(route).ok());
  ASSERT_EQ(route.stages.size(), 3U);
  EXPECT_EQ(route.stages[0].rails[0].line, plan::Affine(3e-5, 3e-10));
  EXPECT_EQ(route.stages[1].rails[0].line, plan::Affine(1e-3, 4e-9));
  EXPECT_EQ(route.stages[2].rails, route.stages[0].rails) << "on the same lane";
  EXPECT_NE(route.stages[1].rails[0].lane, route.stages[0].rails[0].lane);
}

// Four bytes that wait for a peer for ten seconds make 2.5 s a byte, and a peer may lie.
TEST(RouteOf, HasLinesThatPlansCanBeMadeForWhateverWasMeasured) {
  constexpr double kTimes[] = {0, 5e-324, 1e-18, 1e-4, 2.5, 1e9, 1e300};
  const plan::Profile profile{.model = "m",
                              .dtype = DType::kFloat32,
                              .tensors = {{"a", 1, 1e-3, 1e-3}, {"b", 1 << 20, 1e-3, 1e-3}}};
  for (const double startup_s : kTimes) {
    for (const double s_per_byte : kTimes) {
      const transport::CostLine odd{.startup_s = startup_s, .s_per_byte = s_per_byte};
      JobShape shape = Nodes(2);
      shape.agreed = {kAgreed, odd};
      shape.nodes[0].ranks = {0, 2};
      std::vector<NodeSeen> seen = {Costs({odd, kAgreed, odd})};
      seen[0].codecs = {{.codec = Codec::kInt8, .share = kCodecShareMin, .encode_s_per_byte = 9e-4},
                        {.codec = Codec::kPowerSgd, .share = 0.5, .decode_s_per_byte = 9e-4}};
      plan::Route route = RouteOf(shape, seen, kBlockBytes);
      AddCodecs(route, shape, seen, std::vector<Codec>{Codec::kInt8, Codec::kPowerSgd});
      ASSERT_EQ(route.stages[1].coded.size(), 2U);
      const auto made = plan::MakePlan(plan::Policy::kAuto, profile, route);
      EXPECT_TRUE(made.ok()) << startup_s << " " << s_per_byte;
    }
  }
}

NodeSeen Codecs(std::vector<CodecCost> costs) {
  NodeSeen seen;
  seen.codecs = std::move(costs);
  return seen;
}

CodecCost TopK(double encode_s_per_byte, double decode_s_per_byte) {
  return {.codec = Codec::kTopK,
          .share = 0.03,
          .encode_s_per_byte = encode_s_per_byte,
          .decode_s_per_byte = decode_s_per_byte};
}

CodecCost CostMadeOf(const JobShape& shape, const std::vector<NodeSeen>& seen) {
  plan::Route route = RouteOf(shape, seen, kBlockBytes);
  AddCodecs(route, shape, seen, std::vector<Codec>{Codec::kTopK});
  const std::vector<plan::CodedLines>& coded = route.stages[0].coded;
  EXPECT_EQ(coded.size(), 1U);
  return coded.empty() ? CodecCost() : coded.front().cost;
}

// A node that came first to its transfers also waited for the other.
TEST(AddCodecs, HasTheWorkOfTheSlowestNodeOrWhereServersSumOfTheOneThatWaitedLeast) {
  const std::vector<NodeSeen> seen = {Codecs({TopK(3e-10, 2e-9)}), Codecs({TopK(4e-10, 1e-9)})};
  const CodecCost direct = CostMadeOf(Nodes(2), seen);
  EXPECT_EQ(direct, (CodecCost{.codec = Codec::kTopK,
                               .share = 24.0 / 1024,
                               .encode_s_per_byte = 4e-10,
                               .decode_s_per_byte = 2e-9}));
  const CodecCost served = CostMadeOf(Nodes(2, 1), seen);
  EXPECT_EQ(served.encode_s_per_byte, 4e-10);
  EXPECT_EQ(served.decode_s_per_byte, 1e-9);
  // A header of 104 bytes and a tail of 32 for each 64 KiB, which crosses as 1536 bytes.
  EXPECT_DOUBLE_EQ(served.share, (1536.0 + 104 + 32) / 65536);
}

TEST(AddCodecs, CostsOfTransfersAreThoseOfTheNodeThatWaitedLeast) {
  std::vector<NodeSeen> seen = {Codecs({TopK(3e-10, 2e-9)}), Codecs({TopK(4e-10, 1e-9)})};
  seen[0].codecs[0].of_transfers = true;
  EXPECT_EQ(CostMadeOf(Nodes(2), seen).decode_s_per_byte, 2e-9) << "one has only its own work";
  seen[1].codecs[0].of_transfers = true;
  const CodecCost cost = CostMadeOf(Nodes(2), seen);
  EXPECT_EQ(cost.encode_s_per_byte, 4e-10);
  EXPECT_EQ(cost.decode_s_per_byte, 1e-9);
}

// 64 KiB of what processors are slower at than the wire.
TEST(AddCodecs, OverServersATransferHasAPieceMoreThanItsBytesFill) {
  const std::vector<NodeSeen> seen = {Codecs({TopK(1e-9, 1e-9)})};
  for (const std::uint32_t servers : {0U, 1U}) {
    const JobShape shape = Nodes(2, servers);
    plan::Route route = RouteOf(shape, seen, kBlockBytes);
    AddCodecs(route, shape, seen, std::vector<Codec>{Codec::kTopK});
    const plan::PiecewiseCost& line = route.stages[0].coded.at(0).lines.at(0);
    const double startup_s = route.stages[0].rails[0].line.pieces.back().startup_s;
    const double more_s = servers > 0 ? 65536 * 2e-9 : 0;
    EXPECT_NEAR(line.pieces.front().startup_s, startup_s + more_s, 1e-12) << servers;
    const double whole_s = line.Seconds(16 << 20);
    const double halves_s = 2 * line.Seconds(8 << 20);
    EXPECT_GE(halves_s - whole_s, startup_s + more_s) << servers;
  }
}

TEST(AddRuns, SaysWhereGradientsLieForServers) {
  service::Layout layout;
  layout.tensors = {{.name = "a", .offset = 0, .count = 100},
                    {.name = "b", .offset = 400, .count = 100},
                    {.name = "c", .offset = 832, .count = 10},  // behind a gap
                    {.name = "d", .offset = 872, .count = 10}};
  JobShape shape = Nodes(2);
  plan::Route route = RouteOf(shape, {}, kBlockBytes);
  AddRuns(route, shape, layout);
  EXPECT_TRUE(route.stages[0].offsets_bytes.empty()) << "nodes sum what lies anywhere";
  shape.servers_count = 1;
  AddRuns(route, shape, layout);
  EXPECT_EQ(route.stages[0].offsets_bytes, (std::vector<std::uint64_t>{0, 400, 832, 872}));
}

TEST(RouteOf, RailsShareEachBlock) {
  JobShape shape = Nodes(2);
  shape.agreed = {kAgreed, {.startup_s = 0, .s_per_byte = 0}};
  shape.nodes[0].ranks = {0, 2};
  const plan::Route route = RouteOf(shape, {}, kBlockBytes);
  EXPECT_TRUE(CheckRoute(route).ok()) << "a rail without a price would be refused";
  ASSERT_EQ(route.stages.size(), 3U);
  EXPECT_EQ(route.stages[1].rails.size(), 2U);
}

service::SeenIteration Seen(std::uint64_t iteration, double offset_s, float release_s,
                            float forward_s) {
  return {.iteration = iteration,
          .offset_s = offset_s,
          .forward_begin_s = 3 * release_s,
          .release_s = {2 * release_s, release_s},
          .forward_s = {forward_s, forward_s}};
}

// Node b begins 0.5 s after node a, and computes half as long.
TEST(MergeRecorded, TheLastNodeOfEachIterationCounts) {
  std::vector<NodeSeen> seen(2);
  seen[0].times.iterations = {Seen(1, 1, 1, 1), Seen(2, 1, 1, 1)};
  seen[1].times.iterations = {Seen(2, 1.5, 0.5, 0.25), Seen(3, 1, 1, 1)};
  seen[0].times.contention = 0.2;
  const plan::Recording recording = service::MergeRecorded(seen);
  EXPECT_DOUBLE_EQ(recording.contention, 0.1);
  ASSERT_EQ(recording.iterations.size(), 1U) << "only iteration 2 is known of both";
  const plan::RecordedIteration& merged = recording.iterations[0];
  // Time 0 is node b's begin, so node a's gradients come 0.5 s earlier than it says.
  EXPECT_FLOAT_EQ(merged.release_s[1], 0.5F);
  EXPECT_FLOAT_EQ(merged.release_s[0], 1.5F);
  EXPECT_FLOAT_EQ(merged.forward_s[0], 1);
  EXPECT_FLOAT_EQ(merged.forward_s[1], 1);
  // Node a is done with everything 5 s after its begin.
  EXPECT_NEAR(merged.forward_begin_s, 5 - 0.5 - 2, 1e-6);
  EXPECT_TRUE(plan::CheckRecording(recording, 2).ok());
}

// Before the forward pass of iteration 3 the loop evaluates the model.
TEST(MergeRecorded, LeavesOutWhatTheLoopDoesNowAndThen) {
  std::vector<NodeSeen> seen(1);
  for (const std::uint64_t iteration : {1U, 2U, 3U, 4U}) {
    seen[0].times.iterations.push_back(Seen(iteration, 1, 1, 1));
  }
  seen[0].times.iterations[2].forward_begin_s = 60;
  EXPECT_EQ(service::MergeRecorded(seen).iterations.size(), 3U);
}

TEST(MergeRecorded, ANodeThatRecordedNothingLeavesNothing) {
  std::vector<NodeSeen> seen(2);
  seen[0].times.iterations = {Seen(1, 1, 1, 1)};
  EXPECT_TRUE(service::MergeRecorded(seen).iterations.empty());
  EXPECT_TRUE(service::MergeRecorded({}).iterations.empty());
}

TEST(CheckSeen, RefusesWhatDoesNotBelongToTheJob) {
  struct Case {
    std::function<void(NodeSeen&)> spoil;
    std::string text;
  };
  const Case cases[] = {
      {[](NodeSeen& seen) { seen.times.release_s.pop_back(); },
       "times of 2 releases and 3 forward"},
      {[](NodeSeen& seen) { seen.times.forward_s.push_back(0); }, "and 4 forward passes"},
      {[](NodeSeen& seen) { seen.times.release_s[1] = -1; }, "invalid recorded time"},
      {[](NodeSeen& seen) { seen.times.forward_s[1] = INFINITY; }, "invalid recorded time"},
      {[](NodeSeen& seen) { seen.times.iteration_s = NAN; }, "invalid recorded time"},
      {[](NodeSeen& seen) { seen.times.iterations.resize(1); },
       "a recorded iteration of 0 releases"},
      {[](NodeSeen& seen) { seen.costs.resize(3); }, "costs of 3 lanes, there are 2"},
      {[](NodeSeen& seen) { seen.costs[1].s_per_byte = -1; }, "an invalid cost"},
      {[](NodeSeen& seen) { seen.costs[1].s_per_byte = NAN; }, "an invalid cost"},
      {[](NodeSeen& seen) { seen.costs[0].startup_s = INFINITY; }, "an invalid cost"}};
  const NodeSeen honest = SeenAt(3, 3, 1, 1, kAgreed);
  EXPECT_TRUE(CheckSeen(honest, LayoutOf({4, 5, 6}), Nodes(2)).ok());
  for (const Case& each : cases) {
    NodeSeen seen = honest;
    each.spoil(seen);
    const Status status = CheckSeen(seen, LayoutOf({4, 5, 6}), Nodes(2));
    ASSERT_FALSE(status.ok()) << each.text;
    EXPECT_EQ(status.code(), Code::kCorrupt);
    EXPECT_NE(status.error().text().find(each.text), std::string::npos) << status.error().text();
  }
}

}  // namespace
}  // namespace headrace::support
