// Names and numbers of codecs.
#include "ipc/base/codecs.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "ipc/base/codec_choice.h"
#include "ipc/base/codec_cost.h"
#include "ipc/base/matrix.h"

namespace headrace {
namespace {

TEST(Codecs, AreKnownByTheirNames) {
  for (std::uint8_t kind = 0; kind < std::size(kCodecNames); ++kind) {
    const Codec codec(static_cast<Codec::Kind>(kind));
    EXPECT_EQ(CodecNamed(kCodecNames[kind]), codec) << kCodecNames[kind];
    EXPECT_EQ(CodecNamed(Name(codec)), codec) << Name(codec);
    EXPECT_TRUE(IsCodec(kind, codec.parameter)) << Name(codec);
  }
  for (const char* const name : {"int2", "", "INT8", "int8 ", ":", "topk:", "topk:x", "topk:8x"}) {
    EXPECT_EQ(CodecNamed(name), std::nullopt) << name;
  }
}

TEST(Codecs, CarryTheirParameterInTheName) {
  EXPECT_EQ(CodecNamed("topk:1"), Codec(Codec::kTopK, 1));
  EXPECT_EQ(CodecNamed("randomk:64"), Codec(Codec::kRandomK, 64));
  EXPECT_EQ(Name({Codec::kTopK, 3}), "topk:3");
  EXPECT_EQ(Name(Codec::kTopK), "topk:" + std::to_string(kKeptDefault));
  EXPECT_NE(Codec(Codec::kTopK, 3), Codec(Codec::kTopK));
  EXPECT_EQ(CodecNamed("powersgd:1"), Codec(Codec::kPowerSgd, 1));
  EXPECT_EQ(CodecNamed("powersgd"), Codec(Codec::kPowerSgd, kRankDefault));
  EXPECT_EQ(CodecNamed("powersgd:32"), Codec(Codec::kPowerSgd, kRankMax));
  for (const char* const name : {"topk:0", "topk:65", "topk:256", "topk:-1", "int8:8", "none:0",
                                 "powersgd:0", "powersgd:33"}) {
    EXPECT_EQ(CodecNamed(name), std::nullopt) << name;
  }
}

TEST(Codecs, AreTwoBytesOfWhichNotAllAreOne) {
  EXPECT_FALSE(IsCodec(std::size(kCodecNames), 0));
  EXPECT_FALSE(IsCodec(200, 8));
  EXPECT_FALSE(IsCodec(Codec::kInt8, 1));
  EXPECT_FALSE(IsCodec(Codec::kTopK, 0));
  EXPECT_FALSE(IsCodec(Codec::kTopK, kKeptMax + 1));
  EXPECT_TRUE(IsCodec(Codec::kRandomK, kKeptMax));
  EXPECT_FALSE(IsCodec(Codec::kPowerSgd, 0));
  EXPECT_FALSE(IsCodec(Codec::kPowerSgd, kRankMax + 1));
}

TEST(Codecs, TakeOnlyMatricesWhoseFactorsAreSmall) {
  constexpr Codec kOfRankTwo(Codec::kPowerSgd, 2);
  EXPECT_TRUE(HasFactors(kOfRankTwo, 64, 64 * 64));
  EXPECT_EQ(FactorsCount(kOfRankTwo, 64, 64 * 100), 2U * (64 + 100));
  EXPECT_EQ(FactorMemoryCount(kOfRankTwo, 64, 64 * 100), 2U * (64 + 100 + 100));
  EXPECT_FALSE(HasFactors(Codec::kInt8, 64, 64 * 64));
  EXPECT_FALSE(HasFactors(kOfRankTwo, 0, 64 * 64)) << "no matrix";
  EXPECT_FALSE(HasFactors(kOfRankTwo, 1, 64 * 64)) << "a vector";
  EXPECT_FALSE(HasFactors(kOfRankTwo, 63, 64 * 64)) << "no whole rows";
  EXPECT_FALSE(HasFactors(kOfRankTwo, 64 * 64 + 1, 64 * 64)) << "more rows than elements";
  EXPECT_FALSE(HasFactors(kOfRankTwo, 63, 63 * 65)) << "small";
  // As many elements as half of it has.
  EXPECT_FALSE(HasFactors({Codec::kPowerSgd, 16}, 64, 64 * 64));
  EXPECT_TRUE(HasFactors({Codec::kPowerSgd, 15}, 64, 64 * 64));
  EXPECT_TRUE(HasFactors({Codec::kPowerSgd, 1}, 5, 5 * kMatrixColumnsMax));
  EXPECT_FALSE(HasFactors({Codec::kPowerSgd, 1}, 5, 5 * (kMatrixColumnsMax + 1)));
  EXPECT_TRUE(HasFactors({Codec::kPowerSgd, 4}, 50, 50 * kMatrixColumnsMax));
  EXPECT_FALSE(HasFactors({Codec::kPowerSgd, 5}, 50, 50 * kMatrixColumnsMax));
}

TEST(Codecs, LoseSomethingButForTwo) {
  EXPECT_FALSE(Loses(Codec::kNone));
  EXPECT_FALSE(Loses(Codec::kLossless));
  EXPECT_TRUE(Loses(Codec::kBFloat16));
  EXPECT_TRUE(Loses(Codec::kTopK));
}

TEST(CodecChoice, IsOneCodecOrSomeThatAPlanMayUse) {
  for (const char* name : {"none", "int8", "topk:3", "auto:int8", "auto:int8,bf16,topk:3"}) {
    const auto choice = ChoiceNamed(name);
    ASSERT_TRUE(choice) << name;
    EXPECT_EQ(ChoiceName(*choice), name);
    EXPECT_EQ(ChoiceOfValue(ChoiceValue(*choice)), choice) << name;
    EXPECT_EQ(choice->allowed.List().empty(), std::string_view(name).find("auto") != 0) << name;
  }
  for (const char* name : {"", "auto", "auto:", "auto:none", "auto:int8,", "auto:int8,int8",
                           "auto:int2", "auto:int8,int4,bf16,fp16", "int8,bf16"}) {
    EXPECT_EQ(ChoiceNamed(name), std::nullopt) << name;
  }
  constexpr std::uint64_t kFree = std::uint64_t{1} << 63U;
  for (const std::uint64_t value : {kFree, kFree | 99U, kFree | 0x30000U, kFree | 0x30003U,
                                    kFree | std::uint64_t{3} << 48U, std::uint64_t{0x30003}}) {
    EXPECT_EQ(ChoiceOfValue(value), std::nullopt) << value;
  }
}

// A peer's next to nothing would make pieces of a transfer larger than any integer.
TEST(CodecCosts, HaveSharesThatSomeCodecCanHave) {
  EXPECT_FALSE(IsCodecCost({.codec = Codec::kInt8, .share = 1e-9}));
  EXPECT_FALSE(IsCodecCost({.codec = Codec::kInt8, .share = 2}));
  EXPECT_TRUE(IsCodecCost({.codec = Codec::kInt8, .share = 0.25}));
}

}  // namespace
}  // namespace headrace
