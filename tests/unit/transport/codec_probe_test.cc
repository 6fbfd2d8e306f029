// What codecs cost, as plans reckon with it.
#include "transport/probe/codec_probe.h"

#include <gtest/gtest.h>

#include "transport/codec/codec.h"
#include "transport/exchange/limits.h"
#include "transport/exchange/partition.h"

namespace headrace::transport {
namespace {

TEST(MeasureCodecs, HasACostOfEveryCodec) {
  const std::vector<CodecCost> costs = MeasureCodecs();
  ASSERT_EQ(costs.size(), std::size(kCodecNames) - 1);
  EXPECT_LE(costs.size(), kCodecCostsMax);
  for (std::size_t i = 0; i < costs.size(); ++i) {
    EXPECT_EQ(costs[i].codec, Codec(static_cast<Codec::Kind>(i + 1)));
    EXPECT_TRUE(IsCodecCost(costs[i])) << Name(costs[i].codec);
    EXPECT_GT(costs[i].encode_s_per_byte, 0);
    EXPECT_GT(costs[i].decode_s_per_byte, 0);
    if (HasBlocks(costs[i].codec)) {
      EXPECT_EQ(costs[i].share, EncodedShare(costs[i].codec));
    } else {
      // Values of few exponents; a matrix of low rank.
      EXPECT_LT(costs[i].share, 0.95) << Name(costs[i].codec);
    }
  }
}

TEST(OfTransfer, DecodesWhatOthersSendOfAShareAndTheSumOfAll) {
  const CodecCost measured{
      .codec = Codec::kInt8, .share = 0.25, .encode_s_per_byte = 2e-10, .decode_s_per_byte = 1e-10};
  const CodecCost of_four = OfTransfer(measured, 4, 0);
  EXPECT_EQ(of_four.encode_s_per_byte, 2e-10);
  EXPECT_DOUBLE_EQ(of_four.decode_s_per_byte, 1e-10 * (3.0 / 4 + 1));
  const CodecCost of_two = OfTransfer(measured, 2, 0);
  EXPECT_DOUBLE_EQ(of_two.decode_s_per_byte, 1e-10 * 2);
  // Goes by shares, as it would without a codec.
  CodecCost lossless = measured;
  lossless.codec = Codec::kLossless;
  EXPECT_DOUBLE_EQ(OfTransfer(lossless, 2, 0).decode_s_per_byte, 1e-10 * 1.5);
  // The product is made once, whoever has summed the factors.
  CodecCost factored = measured;
  factored.codec = Codec::kPowerSgd;
  EXPECT_EQ(OfTransfer(factored, 4, 0), factored);
}

// A server decodes what all nodes sent, and encodes the sum: of its share of the bytes.
TEST(WithServers, IsTheSlowerOfNodesAndServers) {
  constexpr CodecCost kMeasured{
      .codec = Codec::kInt8, .share = 0.25, .encode_s_per_byte = 2e-9, .decode_s_per_byte = 1e-9};
  // 8 us a message of 64 KiB of elements.
  constexpr double kMessage = 8e-6 / 65536;
  EXPECT_EQ(OfTransfer(kMeasured, 4, 1), kMeasured);
  const CodecCost with_one = WithServers(kMeasured, 4, 1);
  EXPECT_EQ(with_one.encode_s_per_byte, 2e-9);
  EXPECT_DOUBLE_EQ(with_one.decode_s_per_byte, 4e-9 + 8 * kMessage);
  EXPECT_DOUBLE_EQ(WithServers(kMeasured, 4, 3).decode_s_per_byte, 1e-9 + 2 * kMessage);
  EXPECT_EQ(WithServers(kMeasured, 4, 0), kMeasured);
  // Sums of what all nodes chose by chance are not encoded; factors are no pieces of that size.
  CodecCost other = kMeasured;
  other.codec = Codec::kRandomK;
  EXPECT_DOUBLE_EQ(WithServers(other, 4, 2).decode_s_per_byte, 1e-9 + 2 * kMessage);
  other.codec = Codec::kPowerSgd;
  EXPECT_EQ(WithServers(other, 4, 1), other);
  // A rate is bounded, and stays so.
  other = {.codec = Codec::kTopK, .share = 0.1, .decode_s_per_byte = 9.9e-4};
  EXPECT_TRUE(IsCodecCost(WithServers(other, 64, 1)));
}

TEST(PiecesCount, IsAboutThatOfThePartition) {
  for (const Codec codec : {Codec(Codec::kInt8), Codec(Codec::kBFloat16), Codec(Codec::kTopK)}) {
    for (const std::uint64_t count : {10'000ULL, 100'000ULL, 1'000'000ULL, 10'000'000ULL}) {
      CollectiveSpec spec{.kind = Collective::kAllReduce, .dtype = DType::kFloat32, .count = count};
      spec.codec = codec;
      spec.place = 1;
      const double plain = static_cast<double>(count * sizeof(float));
      for (const std::uint32_t nodes : {2U, 4U}) {
        for (const std::uint32_t servers : {0U, 1U, 3U}) {
          const Pattern pattern = servers > 0  ? Pattern::kServed
                                  : nodes == 2 ? Pattern::kExchange
                                               : Pattern::kScatter;
          const Partition partition(spec, pattern, 0, nodes, servers, ExchangeOptions().piece_size);
          const double pieces = PiecesCount(plain * EncodedShare(codec), plain, nodes, servers);
          EXPECT_NEAR(pieces, partition.pieces_count(), 0.15 * partition.pieces_count() + 1)
              << count << " as " << Name(codec) << " among " << nodes << " over " << servers;
        }
      }
    }
  }
}

}  // namespace
}  // namespace headrace::transport
