// Which layouts make sense, and where two of them differ.
#include "service/cluster/layouts.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/support/expect_text.h"
#include "tests/unit/service/cluster/plans.h"

namespace headrace::support {
namespace {

using plan::Policy;
using service::GradientsPlace;
using service::Layout;
using service::NodeLayouts;

struct Spoiled {
  std::function<void(Layout&)> spoil;
  std::string value;  // in what the refusal says
};

TEST(CheckLayout, TakesTensorsInAnyOrderOfPlacesAndWithGaps) {
  Layout layout = LayoutOf({4, 5, 6});
  std::swap(layout.tensors[0].offset, layout.tensors[2].offset);
  layout.tensors[1].offset = 100;
  layout.tensors[0].offset = 200;
  EXPECT_TRUE(CheckLayout(layout).ok()) << CheckLayout(layout).error().text();
}

TEST(CheckLayout, RefusesWhatMakesNoSenseByName) {
  const Spoiled cases[] = {
      {[](Layout& layout) { layout.tensors.clear(); }, "768"},
      {[](Layout& layout) { layout = LayoutOf(Elements(769)); }, "769"},
      {[](Layout& layout) { layout.tensors[1].dtype = DType{99}; }, "dtype 99"},
      {[](Layout& layout) { layout.reduction = Reduction::kMax; }, ""},
      {[](Layout& layout) { layout.tensors[1].count = 0; }, "tensor 1 (layer1)"},
      {[](Layout& layout) { layout.tensors[1].count = std::uint64_t{1} << 48; }, "281474976710656"},
      {[](Layout& layout) { layout.tensors[2].offset = UINT64_MAX; }, "tensor 2 (layer2)"},
      {[](Layout& layout) { layout.tensors[0].offset = 4; }, "byte 4"},
      {[](Layout& layout) { layout.tensors[2].offset = 35; }, "byte 35"}};
  for (const Spoiled& each : cases) {
    Layout layout = LayoutOf({4, 5, 6});
    each.spoil(layout);
    const Status status = CheckLayout(layout);
    ASSERT_FALSE(status.ok()) << each.value;
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_TEXT(status.error().text(), each.value);
  }
}

TEST(CompareLayouts, NamesTheFirstDifferenceAndBothSides) {
  const Spoiled cases[] = {
      {[](Layout& layout) { layout.tensors[1].dtype = DType::kFloat16; }, "float16"},
      {[](Layout& layout) { layout.reduction = Reduction::kSum; }, "average"},
      {[](Layout& layout) { layout.tensors[1].count = 7; }, "tensor 1 (layer1)"},
      {[](Layout& layout) { layout.tensors[2].offset = 40; }, "byte 40"},
      {[](Layout& layout) { layout.tensors.pop_back(); }, ""}};
  const Layout honest = LayoutOf({4, 5, 6});
  for (const Spoiled& each : cases) {
    Layout other = honest;
    each.spoil(other);
    const Status status = CompareLayouts(honest, "rank 0", other, "rank 3 on node b");
    ASSERT_FALSE(status.ok()) << each.value;
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_TEXT(status.error().text(), "rank 0", "rank 3 on node b", each.value);
  }
}

TEST(CompareLayouts, NamesOfTensorsAreForPeople) {
  Layout other = LayoutOf({4, 5, 6});
  other.tensors[0].name.clear();
  EXPECT_TRUE(CompareLayouts(LayoutOf({4, 5, 6}), "rank 0", other, "rank 1").ok());
  EXPECT_EQ(service::DescribeTensor(other, 0), "tensor 0");
}

TEST(NodeLayouts, OneLayoutAndOnePolicyStandForAllRanks) {
  NodeLayouts layouts;
  const auto layout = Shared(LayoutOf({4, 5}));
  ASSERT_TRUE(layouts.Check(2, *layout, std::nullopt).ok());
  layouts.Add(2, layout, std::nullopt);
  EXPECT_FALSE(layouts.policy().has_value());
  ASSERT_TRUE(layouts.Check(0, *layout, Policy::kBsp).ok());
  layouts.Add(0, Shared(LayoutOf({4, 5})), Policy::kBsp);
  EXPECT_EQ(layouts.ranks_count(), 2U);
  EXPECT_EQ(layouts.layout(), layout);
  EXPECT_EQ(layouts.policy(), Policy::kBsp);
  EXPECT_TRUE(layouts.Check(1, *layout, std::nullopt).ok()) << "who says nothing agrees";
}

TEST(NodeLayouts, RefusesASecondLayoutAnotherLayoutAndAnotherPolicy) {
  NodeLayouts layouts;
  const auto layout = Shared(LayoutOf({4, 5}));
  layouts.Add(2, layout, Policy::kExact);
  EXPECT_EQ(layouts.Check(2, *layout, std::nullopt).code(), Code::kAlreadyExists);
  const Status other = layouts.Check(1, LayoutOf({4}), std::nullopt);
  ASSERT_EQ(other.code(), Code::kMismatch);
  EXPECT_TEXT(other.error().text(), "rank 2", "rank 1");
  const Status policy = layouts.Check(1, *layout, Policy::kWfbp);
  ASSERT_EQ(policy.code(), Code::kMismatch);
  EXPECT_TEXT(policy.error().text(), "rank 2", "rank 1", "policy exact");
}

// A rank whose service told it less has counted one less.
TEST(NodeLayouts, TheRankThatHasCountedMostIterationsIsRight) {
  Layout layout = LayoutOf({8});
  NodeLayouts layouts;
  for (const std::uint64_t iterations : {56U, 57U, 55U}) {
    layout.iterations_before = iterations;
    const auto rank = static_cast<std::uint32_t>(iterations - 55);
    ASSERT_TRUE(layouts.Check(rank, layout, std::nullopt).ok()) << iterations;
    layouts.Add(rank, std::make_shared<const Layout>(layout), std::nullopt);
  }
  EXPECT_EQ(layouts.layout()->iterations_before, 57U);
  layout.iterations_before = service::kIterationsBeforeMax;
  EXPECT_TRUE(CheckLayout(layout).ok());
  layout.iterations_before = service::kIterationsBeforeMax + 1;
  EXPECT_TEXT(CheckLayout(layout).error().text(), "281474976710657", "281474976710656");
}

TEST(Layouts, NameTheCodecsInWhichTheyDiffer) {
  Layout one = LayoutOf({4});
  Layout other = one;
  other.tensors[0].codec = Codec::kInt8;
  Status status = CompareLayouts(one, "rank 0", other, "rank 1");
  ASSERT_EQ(status.code(), Code::kMismatch);
  EXPECT_TEXT(status.error().text(), "rank 0", "rank 1", "tensor 0", "none", "int8");
  other = one;
  other.compress_after = 50;
  status = CompareLayouts(one, "rank 0", other, "rank 1");
  ASSERT_EQ(status.code(), Code::kMismatch);
  EXPECT_TEXT(status.error().text(), "rank 0", "rank 1", "50");
}

TEST(SetRows, TakesWholeRowsOfEachTensorOrOfNone) {
  service::Layout layout;
  layout.tensors = {{.name = "a", .count = 12}, {.name = "b", .offset = 48, .count = 7}};
  EXPECT_TRUE(service::SetRows(layout, {}).ok());
  EXPECT_EQ(layout.tensors[0].rows, 0U);
  constexpr std::uint64_t kRows[] = {4, 0};
  EXPECT_TRUE(service::SetRows(layout, kRows).ok());
  EXPECT_EQ(layout.tensors[0].rows, 4U);
  EXPECT_EQ(layout.tensors[1].rows, 0U);
  constexpr std::uint64_t kNotWhole[] = {4, 3};
  EXPECT_EQ(service::SetRows(layout, kNotWhole).code(), Code::kInvalidArgument);
  constexpr std::uint64_t kTooMany[] = {4, 24};
  EXPECT_EQ(service::SetRows(layout, kTooMany).code(), Code::kInvalidArgument);
  constexpr std::uint64_t kOfOne[] = {4};
  EXPECT_EQ(service::SetRows(layout, kOfOne).code(), Code::kInvalidArgument);
  service::Layout other = layout;
  other.tensors[0].rows = 3;
  const Status differs = service::CompareLayouts(layout, "rank 0", other, "rank 1");
  EXPECT_EQ(differs.code(), Code::kMismatch);
  EXPECT_NE(differs.error().text().find("4 and 3 rows"), std::string::npos);
}

TEST(FittingChoice, LeavesWhatIsNoMatrixToOtherCodecs) {
  const service::LayoutTensor matrix{.count = 64 * 100, .rows = 64};
  const service::LayoutTensor vector{.count = 64 * 100};
  const service::LayoutTensor doubles{.count = 64 * 100, .rows = 64, .dtype = DType::kFloat64};
  const CodecChoice factors(Codec::kPowerSgd);
  EXPECT_EQ(service::FittingChoice(matrix, factors), factors);
  EXPECT_TRUE(service::FittingChoice(vector, factors).is_none());
  EXPECT_TRUE(service::FittingChoice(doubles, factors).is_none());
  EXPECT_TRUE(service::FittingChoice(matrix, Codec(Codec::kPowerSgd, 30)).is_none());
  EXPECT_EQ(service::FittingChoice(vector, Codec::kInt8), CodecChoice(Codec::kInt8));
  const auto some = ChoiceNamed("auto:powersgd:4,int8");
  ASSERT_TRUE(some);
  EXPECT_EQ(service::FittingChoice(matrix, *some), *some);
  EXPECT_EQ(service::FittingChoice(vector, *some), ChoiceNamed("auto:int8"));
  EXPECT_TRUE(service::FittingChoice(vector, *ChoiceNamed("auto:powersgd:4")).is_none());
}

TEST(SetCodecs, LeavesSmallTensorsAloneUnlessTheyAreNamed) {
  constexpr std::uint64_t kLeast = service::kCompressedBytesMin / sizeof(float);
  Layout layout = LayoutOf({kLeast, kLeast - 1, 8, kLeast});
  const std::vector<std::optional<CodecChoice>> each = {
      std::nullopt, std::nullopt, Codec(Codec::kBFloat16), Codec(Codec::kNone)};
  ASSERT_TRUE(service::SetCodecs(layout, Codec::kInt8, each, GradientsPlace::kHost).ok());
  EXPECT_EQ(layout.tensors[0].codec, Codec(Codec::kInt8));
  EXPECT_FALSE(layout.tensors[0].keeps_codec);
  EXPECT_EQ(layout.tensors[1].codec, Codec(Codec::kNone));
  EXPECT_EQ(layout.tensors[2].codec, Codec(Codec::kBFloat16));
  EXPECT_EQ(layout.tensors[3].codec, Codec(Codec::kNone));
  for (const std::size_t i : {1U, 2U, 3U}) EXPECT_TRUE(layout.tensors[i].keeps_codec) << i;
}

TEST(SetCodecs, RefusesWhatCannotBeCompressed) {
  constexpr std::uint64_t kLeast = service::kCompressedBytesMin / sizeof(float);
  Layout layout = LayoutOf({kLeast, kLeast});
  layout.tensors[1].dtype = DType::kBFloat16;
  ASSERT_TRUE(service::SetCodecs(layout, Codec::kInt8, {}, GradientsPlace::kHost).ok());
  EXPECT_EQ(layout.tensors[1].codec, Codec(Codec::kNone)) << "nobody named it";
  const std::vector<std::optional<CodecChoice>> each(2, Codec(Codec::kInt8));
  Status status = service::SetCodecs(layout, Codec::kNone, each, GradientsPlace::kHost);
  ASSERT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_TEXT(status.error().text(), "tensor 1", "int8", "bfloat16");
  status =
      service::SetCodecs(layout, Codec::kNone, std::span(each).first(1), GradientsPlace::kHost);
  ASSERT_EQ(status.code(), Code::kInvalidArgument);
}

TEST(SetCodecs, CompressesForGpusWhatCrossesThroughTheHost) {
  constexpr std::uint64_t kLeast = service::kCompressedBytesMin / sizeof(float);
  Layout layout = LayoutOf({kLeast});
  for (const Codec codec : {Codec::kNone, Codec::kBFloat16, Codec::kInt8, Codec::kLossless}) {
    EXPECT_TRUE(service::SetCodecs(layout, codec, {}, GradientsPlace::kGpusThroughHost).ok())
        << Name(codec);
    EXPECT_EQ(layout.tensors[0].codec, codec);
    EXPECT_FALSE(layout.tensors[0].keeps_codec) << "a person may ask for another";
  }
  const Status status =
      service::SetCodecs(layout, Codec::kBFloat16, {}, GradientsPlace::kGpusByNccl);
  ASSERT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_TEXT(status.error().text(), "tensor 0", "gpu_network = staged");
  EXPECT_TRUE(service::SetCodecs(layout, Codec::kNone, {}, GradientsPlace::kGpusByNccl).ok());
  EXPECT_TRUE(layout.tensors[0].keeps_codec) << "nobody can ask for one";
}

// Equal sizes hide it: the sums would be of other gradients.
TEST(Layouts, TellEqualLayoutsApartWhoseNamesStandInAnotherOrder) {
  Layout one;
  one.tensors = {{.name = "left", .offset = 0, .count = 8},
                 {.name = "right", .offset = 32, .count = 8}};
  Layout other = one;
  std::swap(other.tensors[0].name, other.tensors[1].name);
  one.names_hash = HashNames(one);
  other.names_hash = HashNames(other);
  const Status status = CompareLayouts(one, "rank 0", other, "rank 1 on node b");
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), Code::kMismatch);
  for (const char* part : {"rank 0", "rank 1 on node b", "tensor 0", "\"left\"", "\"right\""}) {
    EXPECT_NE(status.error().text().find(part), std::string::npos) << status.error().text();
  }
  NodeLayouts node;
  node.Add(0, std::make_shared<const Layout>(one), {});
  EXPECT_EQ(node.Check(1, other, {}).code(), Code::kMismatch);
}

TEST(Layouts, HashNamesAlikeOnEveryMachine) {
  Layout layout;
  EXPECT_EQ(HashNames(layout), 0xcbf29ce484222325U);
  layout.tensors = {
      {.name = "a", .count = 1}, {.name = "", .count = 1}, {.name = "bc", .count = 1}};
  const std::uint64_t hash = HashNames(layout);
  EXPECT_EQ(hash, 0xf8bea83eea00b1caU);
  layout.tensors[1].name = "b";
  layout.tensors[2].name = "c";
  EXPECT_NE(HashNames(layout), hash) << "where one name ends counts";
}

}  // namespace
}  // namespace headrace::support
