// Plans in pieces: put together they are the same plan, and nothing else passes for one.
#include "service/cluster/plan_text.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "service/plan/canonical.h"
#include "tests/unit/service/cluster/plans.h"

namespace headrace::support {
namespace {

using service::CheckPlan;
using service::CutPlan;
using service::kPlanPieceMax;
using service::kPlanTextMax;
using service::PlanPiece;
using service::PlanReassembly;

// A plan whose blocks have one element each: there are many, and its text is long.
plan::Plan PlanOf(const service::Layout& layout, std::uint32_t version) {
  plan::Plan plan;
  plan.version = version;
  for (std::uint32_t l = 0; l < layout.tensors.size(); ++l) {
    for (std::uint64_t element = 0; element < layout.tensors[l].count; ++element) {
      plan.blocks.push_back({.ranges = {{.tensor = l, .offset_bytes = 4 * element, .bytes = 4}},
                             .bytes = 4,
                             .begin_s = 0,
                             .end_s = 0});
    }
  }
  return plan;
}

class PlanTextTest : public testing::Test {
 protected:
  Result<std::shared_ptr<const plan::Plan>> Gather(const std::vector<PlanPiece>& pieces) {
    for (std::size_t i = 0; i + 1 < pieces.size(); ++i) {
      const auto taken = reassembly_.Add(pieces[i], layout_, true);
      if (!taken) return taken;
      EXPECT_EQ(*taken, nullptr) << "more is to come";
    }
    return reassembly_.Add(pieces.back(), layout_, true);
  }
  std::vector<PlanPiece> Cut(std::uint32_t version) const {
    return CutPlan(version, Canonical(PlanOf(layout_, version)));
  }

  service::Layout layout_ = LayoutOf({5000, 3000, 4000});
  PlanReassembly reassembly_;
};

TEST_F(PlanTextTest, CodecsAreOfGradientsThatThereAreAndOfWholeSums) {
  plan::Plan plan = PlanOf(layout_, 7);
  plan.codecs = {{Codec::kInt8, 1, 2}};
  EXPECT_TRUE(CheckPlan(plan, layout_, true).ok());
  plan.codecs = {{Codec::kInt8, 2, 2}};
  EXPECT_EQ(CheckPlan(plan, layout_, true).code(), Code::kCorrupt) << "there are three";
  plan.codecs = {{Codec::kInt8, 1, 2}};
  plan.blocks.push_back(plan.blocks[0]);
  plan.blocks.front().kind = Collective::kReduceScatter;
  plan.blocks.back().kind = Collective::kAllGather;
  EXPECT_EQ(CheckPlan(plan, layout_, true).code(), Code::kCorrupt) << "halves";
  plan.codecs.clear();
  EXPECT_TRUE(CheckPlan(plan, layout_, true).ok());
}

TEST_F(PlanTextTest, PiecesPutTogetherAreTheSamePlan) {
  const std::vector<PlanPiece> pieces = Cut(7);
  ASSERT_GT(pieces.size(), 2U);
  std::size_t size = 0;
  for (const PlanPiece& piece : pieces) {
    EXPECT_LE(piece.text->size(), kPlanPieceMax);
    EXPECT_EQ(piece.last, &piece == &pieces.back());
    size += piece.text->size();
  }
  const auto plan = Gather(pieces);
  ASSERT_TRUE(plan.ok()) << plan.error().text();
  EXPECT_EQ(**plan, PlanOf(layout_, 7));
  EXPECT_EQ(size, Canonical(**plan).size());
  ASSERT_TRUE(Gather(Cut(8)).ok()) << "and then the next";
}

TEST_F(PlanTextTest, RefusesWhatIsNoPlanForThisLayout) {
  struct Case {
    std::function<void(std::vector<PlanPiece>&)> spoil;
    std::string text;
  };
  const auto shared = [](std::string text) {
    return std::make_shared<const std::string>(std::move(text));
  };
  const Case cases[] = {
      {[](auto& pieces) { std::swap(pieces[0], pieces[1]); }, "piece 1 of plan 7 came where"},
      {[](auto& pieces) { pieces.erase(pieces.begin() + 1); }, "piece 2 of plan 7 came where"},
      {[](auto& pieces) { pieces[1].version = 6; }, "piece 1 of plan 6 came where"},
      {[](auto& pieces) { pieces[1].text = nullptr; }, "an empty piece"},
      {[&](auto& pieces) { pieces[1].text = shared(""); }, "an empty piece"},
      {[&](auto& pieces) { pieces[1].text = shared("block\n"); }, "plan: line"},
      {[&](auto& pieces) { pieces[1].text = shared(std::string(kPlanTextMax, 'x')); },
       "more than 4194304 bytes"},
      {[](auto& pieces) {
         for (PlanPiece& piece : pieces) piece.version = 9;
       },
       "plan 7 came as plan 9"},
      {[](auto& pieces) {
         pieces = CutPlan(7, Canonical(PlanOf(LayoutOf({5000, 3000, 4001}), 7)));
       },
       "outside tensor 2"}};
  for (const Case& each : cases) {
    std::vector<PlanPiece> pieces = Cut(7);
    each.spoil(pieces);
    const auto plan = Gather(pieces);
    ASSERT_FALSE(plan.ok()) << each.text;
    EXPECT_EQ(plan.error().code(), Code::kCorrupt);
    EXPECT_NE(plan.error().text().find(each.text), std::string::npos) << plan.error().text();
    reassembly_ = {};
  }
}

TEST_F(PlanTextTest, RefusesHalvesOfAllReducesWhereTheJobHasNone) {
  plan::Plan plan = PlanOf(layout_, 7);
  std::vector<plan::PlannedBlock> gathers = plan.blocks;
  for (plan::PlannedBlock& block : plan.blocks) block.kind = Collective::kReduceScatter;
  for (plan::PlannedBlock& block : gathers) block.kind = Collective::kAllGather;
  plan.blocks.insert(plan.blocks.end(), gathers.begin(), gathers.end());
  EXPECT_TRUE(CheckPlan(plan, layout_, true).ok());
  EXPECT_EQ(CheckPlan(plan, layout_, false).code(), Code::kCorrupt);
  plan.blocks.pop_back();
  EXPECT_FALSE(CheckPlan(plan, layout_, true).ok()) << "a share that nobody gets";
}

TEST_F(PlanTextTest, AFirstPieceBeginsAnew) {
  const std::vector<PlanPiece> pieces = Cut(7);
  ASSERT_TRUE(reassembly_.Add(pieces[0], layout_, true).ok());
  EXPECT_TRUE(Gather(pieces).ok());
}

}  // namespace
}  // namespace headrace::support
