// Whose time an encoded transfer's is.
#include "service/dispatch/job/encoded_sample.h"

#include <gtest/gtest.h>

#include "ipc/base/clock.h"
#include "service/plan/coded.h"
#include "transport/codec/codec.h"
#include "transport/exchange/partition.h"
#include "transport/probe/codec_probe.h"

namespace headrace::service {
namespace {

constexpr double kTransferBytes = 8 << 20;
constexpr transport::CostLine kBelieved{.startup_s = 2e-4, .s_per_byte = 1.6e-8};

EncodedTransfer TransferOf(const Codec& codec, std::uint32_t servers_count, double coding_s,
                           double seconds) {
  const double tails =
      servers_count > 0 && HasBlocks(codec) ? transport::kServedTailShare * kTransferBytes : 0;
  const auto half_ns = static_cast<TimeNs>(coding_s * kSecond / 2);
  return {.codec = codec,
          .seconds = seconds,
          .bytes = kTransferBytes,
          .use = {.encode_ns = half_ns,
                  .decode_ns = half_ns,
                  .plain_bytes = static_cast<std::uint64_t>(kTransferBytes),
                  .sent_bytes = static_cast<std::uint64_t>(
                      transport::EncodedShare(codec) * kTransferBytes + tails)},
          .nodes_count = 2,
          .servers_count = servers_count};
}

double CodingSeconds(const EncodedSample& sample) {
  return static_cast<double>(sample.use.encode_ns + sample.use.decode_ns) / kSecond;
}

// As plans reckon: with the wire's line, and the processors' time as the sample has it.
double PlannedSeconds(const EncodedTransfer& transfer, const EncodedSample& sample,
                      double wire_s_per_byte) {
  const CodecCost cost{
      .codec = transfer.codec,
      .share = sample.wire_bytes / kTransferBytes,
      .encode_s_per_byte = static_cast<double>(sample.use.encode_ns) / kSecond / kTransferBytes,
      .decode_s_per_byte = static_cast<double>(sample.use.decode_ns) / kSecond / kTransferBytes};
  const double most_plain = transport::kServedPieceCountMax * sizeof(float);
  const plan::PieceSizes sizes{.least_bytes = most_plain * cost.share,
                               .most_bytes = 1 << 20,
                               .most_plain_bytes = most_plain,
                               .pieces_count = 1};
  return plan::EncodedLine({0, kBelieved.startup_s, wire_s_per_byte}, cost, sizes)
      .Seconds(static_cast<std::uint64_t>(kTransferBytes));
}

// The server of two nodes: its link has the bytes of both.
TEST(EncodedSample, OverServersIsOfTheWireWhereThatTakesAsLongAsIsBelieved) {
  const double wire_s = kBelieved.Seconds(kTransferBytes / 4);
  for (const double times : {0.95, 1.0, 1.2}) {
    const EncodedSample sample =
        EncodedSampleOf(TransferOf(Codec::kInt8, 1, 4e-3, times * wire_s), kBelieved);
    EXPECT_TRUE(sample.is_of_wire) << times;
    EXPECT_NEAR(sample.wire_s, times * wire_s, 1e-4);
    EXPECT_NEAR(sample.wire_bytes, (260.0 / 1024 + 136.0 / 65536) * kTransferBytes, 1);
    EXPECT_LT(CodingSeconds(sample), 0.5 * wire_s) << "of all processors";
    EXPECT_GT(CodingSeconds(sample), 4e-3);
  }
}

// 512 messages of 1.5 KiB, and a server that has to get all of them: nothing of that is the wire's.
TEST(EncodedSample, OverServersIsOfProcessorsWhereTheWireExplainsLittleOfIt) {
  constexpr double kSeconds = 20e-3;
  const EncodedTransfer transfer = TransferOf(Codec::kTopK, 1, 6e-3, kSeconds);
  const EncodedSample sample = EncodedSampleOf(transfer, kBelieved);
  EXPECT_FALSE(sample.is_of_wire) << "or a plan would believe in a wire six times as slow";
  EXPECT_EQ(sample.use.encode_ns, transfer.use.encode_ns);
  EXPECT_NEAR(CodingSeconds(sample), kSeconds - kBelieved.startup_s, 1e-4);
  EXPECT_NEAR(PlannedSeconds(transfer, sample, kBelieved.s_per_byte), kSeconds, 0.01 * kSeconds);
  // Without servers the node knows what its processor did.
  const EncodedSample direct =
      EncodedSampleOf(TransferOf(Codec::kTopK, 0, 6e-3, kSeconds), kBelieved);
  EXPECT_TRUE(direct.is_of_wire);
  EXPECT_NEAR(CodingSeconds(direct), 6e-3, 1e-8);
}

// What small ones take is mostly their startup, of which many of them say more than a probe.
TEST(EncodedSample, OverServersSmallTransfersTellTheStartup) {
  EncodedTransfer transfer = TransferOf(Codec::kInt8, 1, 4e-3, 1.5e-3);
  transfer.bytes /= 128;
  for (TimeNs* const ns : {&transfer.use.encode_ns, &transfer.use.decode_ns}) *ns /= 128;
  for (std::uint64_t* const size : {&transfer.use.plain_bytes, &transfer.use.sent_bytes}) {
    *size /= 128;
  }
  const EncodedSample sample = EncodedSampleOf(transfer, kBelieved);
  EXPECT_TRUE(sample.is_of_wire);
  EXPECT_LT(CodingSeconds(sample), 1e-4);
}

TEST(EncodedSample, OverServersMakesAPlanExpectWhatItTook) {
  for (const Codec codec : {Codec(Codec::kBFloat16), Codec(Codec::kInt8), Codec(Codec::kTopK)}) {
    for (const std::uint32_t servers : {1U, 2U}) {
      for (const double coding_s : {1e-3, 1e-2, 5e-2}) {
        for (const double seconds : {4e-3, 2e-2, 6e-2, 0.2}) {
          if (coding_s > 0.9 * seconds) continue;
          const EncodedTransfer transfer = TransferOf(codec, servers, coding_s, seconds);
          const EncodedSample sample = EncodedSampleOf(transfer, kBelieved);
          // The line of such samples, or the one that is believed in, and no slower than was seen.
          const double most = (seconds - kBelieved.startup_s) / sample.wire_bytes;
          const double slope = sample.is_of_wire
                                   ? (sample.wire_s - kBelieved.startup_s) / sample.wire_bytes
                                   : std::min(kBelieved.s_per_byte, most);
          EXPECT_NEAR(PlannedSeconds(transfer, sample, slope), seconds, 0.03 * seconds)
              << Name(codec) << " over " << servers << ", " << coding_s << " s of " << seconds;
        }
      }
    }
  }
}

}  // namespace
}  // namespace headrace::service
