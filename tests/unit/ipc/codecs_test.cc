// Names and numbers of codecs.
#include "ipc/base/codecs.h"

#include <gtest/gtest.h>

#include <string>

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
  for (const char* const name : {"topk:0", "topk:65", "topk:256", "topk:-1", "int8:8", "none:0"}) {
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
}

TEST(Codecs, LoseSomethingButForTwo) {
  EXPECT_FALSE(Loses(Codec::kNone));
  EXPECT_FALSE(Loses(Codec::kLossless));
  EXPECT_TRUE(Loses(Codec::kBFloat16));
  EXPECT_TRUE(Loses(Codec::kTopK));
}

}  // namespace
}  // namespace headrace
