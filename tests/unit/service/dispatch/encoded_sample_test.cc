// Whose time an encoded transfer's is.
#include "service/dispatch/job/encoded_sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "ipc/base/clock.h"
#include "service/cluster/planning_inputs.h"
#include "service/dispatch/job/codec_samples.h"
#include "service/dispatch/job/lane_samples.h"
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
  CodecSamples samples;
  samples.Add(transfer.codec, transfer.bytes, sample, 0, 1);
  const transport::CostLine line{kBelieved.startup_s, wire_s_per_byte};
  CodecCost cost =
      samples.Costs({}, transfer.nodes_count, transfer.servers_count, {&line, 1}, 1).at(0);
  cost.share = sample.wire_bytes / transfer.bytes;
  const double most_plain = transport::kServedPieceCountMax * sizeof(float);
  const plan::PieceSizes sizes{.least_bytes = most_plain * cost.share,
                               .most_bytes = 1 << 20,
                               .most_plain_bytes = most_plain,
                               .pieces_count = 1,
                               .placed_bytes = most_plain};
  return plan::EncodedLine({0, line.startup_s, line.s_per_byte}, cost, sizes)
      .Seconds(static_cast<std::uint64_t>(transfer.bytes));
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
  EXPECT_NEAR(PlannedSeconds(transfer, sample, kBelieved.s_per_byte), kSeconds, 0.01 * kSeconds);
  // Without servers the node knows what its processor did.
  const EncodedSample direct =
      EncodedSampleOf(TransferOf(Codec::kTopK, 0, 6e-3, kSeconds), kBelieved);
  EXPECT_TRUE(direct.is_of_wire);
  EXPECT_NEAR(CodingSeconds(direct), 6e-3, 1e-8);
  EXPECT_EQ(direct.seconds, 0) << "the wire took what it is not believed to, and says nothing more";
}

// Messages, and waiting while another node encodes, are not in the 12 ms.
TEST(EncodedSample, DirectOnesAreOfProcessorsWhereTheseTookMostOfWhatTheWireDoesNotExplain) {
  const EncodedTransfer transfer = TransferOf(Codec::kTopK, 0, 12e-3, 20e-3);
  EXPECT_FALSE(EncodedSampleOf(transfer, kBelieved).is_of_wire);
  constexpr transport::CostLine kExplains{.startup_s = 2e-4, .s_per_byte = 9e-8};
  EXPECT_TRUE(EncodedSampleOf(transfer, kExplains).is_of_wire);
}

// What a node reports after transfers without servers, of which its own processor took so long.
NodeSeen SeenBy(double coding_s, double seconds) {
  LaneSamples lane;
  CodecSamples codecs;
  for (std::uint64_t i = 0; i < CodecSamples::kSamplesMax; ++i) {
    const EncodedSample sample =
        EncodedSampleOf(TransferOf(Codec::kTopK, 0, coding_s, seconds), kBelieved);
    codecs.Add(Codec::kTopK, kTransferBytes, sample, 1, i);
    if (sample.is_of_wire) lane.Add(1, sample.wire_bytes, sample.wire_s);
    if (!sample.is_of_wire) lane.AddBound(sample.wire_bytes, sample.wire_s);
  }
  NodeSeen seen;
  seen.costs = {{}, lane.Fit(kBelieved)};
  seen.codecs = codecs.Costs({}, 2, 0, seen.costs, 1);
  return seen;
}

// The quick one has waited, and puts that down to the wire; the slow one knows the wire, and that
// processors took the rest. A plan must not take the better half of both.
TEST(EncodedSample, PlansExpectWhatTransfersTookAlsoWhereOneNodeIsSlower) {
  constexpr double kSeconds = 50e-3;
  const JobShape shape{.nodes = {{.name = "a", .ranks = {0}}, {.name = "b", .ranks = {1}}},
                       .servers_count = 0,
                       .agreed = {kBelieved}};
  for (const double quicker_s : {6e-3, 24e-3, 40e-3}) {
    const std::vector<NodeSeen> seen = {SeenBy(quicker_s, kSeconds), SeenBy(40e-3, kSeconds)};
    plan::Route route = RouteOf(shape, seen, kTransferBytes);
    AddCodecs(route, shape, seen, std::vector<Codec>{Codec::kTopK});
    const plan::PiecewiseCost& line = route.stages[0].coded.at(0).lines.at(0);
    EXPECT_NEAR(line.Seconds(static_cast<std::uint64_t>(kTransferBytes)), kSeconds, 0.1 * kSeconds)
        << quicker_s;
  }
}

TEST(ProcessorSeconds, MakeAPlanExpectTheSame) {
  for (const double pieces : {1.0, 4.0, 128.0}) {
    for (const double wire_s : {0.0, 2e-3, 9e-3, 9.9e-3}) {
      const double seconds = 10e-3;
      const double coding_s = ProcessorSeconds(seconds, wire_s, pieces);
      EXPECT_NEAR(std::max(wire_s, coding_s) + std::min(wire_s, coding_s) / pieces, seconds, 1e-12)
          << pieces << " pieces, wire " << wire_s;
    }
    EXPECT_EQ(ProcessorSeconds(10e-3, 11e-3, pieces), 0);
  }
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

// 10 Gbit/s: 33 KiB cross in 30 us, and 16 pieces of an encoding that keeps little take their time.
TEST(EncodedSample, OverServersAQuickWireIsNotTakenForASlowOneWithALongStartup) {
  constexpr transport::CostLine kQuick{.startup_s = 5e-5, .s_per_byte = 8e-10};
  EncodedTransfer transfer = TransferOf(Codec::kTopK, 1, 4e-3, 2e-3);
  transfer.bytes /= 8;
  for (TimeNs* const ns : {&transfer.use.encode_ns, &transfer.use.decode_ns}) *ns /= 8;
  for (std::uint64_t* const size : {&transfer.use.plain_bytes, &transfer.use.sent_bytes}) {
    *size /= 8;
  }
  const EncodedSample sample = EncodedSampleOf(transfer, kQuick);
  EXPECT_FALSE(sample.is_of_wire);
}

// Of one piece nothing would be left for the wire, or what is reckoned wrongly.
TEST(EncodedSample, WhereProcessorsAreSlowerTheWireTookNoLongerThanAll) {
  for (const std::uint32_t servers : {0U, 1U}) {
    EncodedTransfer transfer = TransferOf(Codec::kInt8, servers, 19e-4, 20e-4);
    transfer.bytes /= 128;
    for (std::uint64_t* const size : {&transfer.use.plain_bytes, &transfer.use.sent_bytes}) {
      *size /= 128;
    }
    const EncodedSample sample = EncodedSampleOf(transfer, kBelieved);
    EXPECT_FALSE(sample.is_of_wire);
    EXPECT_EQ(sample.wire_s, transfer.seconds) << servers << " servers";
  }
}

TEST(EncodedSample, OfFactorsIsOfTheWireWhereTheWorkLeavesEnough) {
  EncodedTransfer transfer = TransferOf(Codec::kBFloat16, 0, 4e-3, 10e-3);
  transfer.codec = Codec::kPowerSgd;
  transfer.use.sent_bytes = transfer.use.plain_bytes / 100;
  EncodedSample sample = EncodedSampleOf(transfer, kBelieved);
  EXPECT_TRUE(sample.is_of_wire);
  EXPECT_NEAR(sample.wire_bytes, kTransferBytes / 200, 1) << "of each of two";
  EXPECT_DOUBLE_EQ(sample.wire_s, 3e-3);
  EXPECT_NEAR(CodingSeconds(sample), 4e-3, 1e-8);
  transfer.seconds = 4.1e-3;
  sample = EncodedSampleOf(transfer, kBelieved);
  EXPECT_FALSE(sample.is_of_wire) << "1 % of error would be half of it";
  EXPECT_DOUBLE_EQ(sample.wire_s, 2.05e-3);
}

// A rail was lost, and the one in its place is ten times slower: what the processors are not known
// to take is its time, or a plan would stop encoding where that pays most.
TEST(EncodedSample, OverServersAnotherWireMayBeSlower) {
  struct Case {
    Codec codec;
    double before_s = 0;
    double seconds = 0;
    bool is_of_wire = false;
  };
  const double int8_s = kBelieved.Seconds(kTransferBytes / 4);
  const Case cases[] = {{Codec::kInt8, 8e-3, 10 * int8_s, true},
                        {Codec::kInt8, 8e-3, 1.1 * int8_s, true},
                        {Codec::kTopK, 20e-3, 60e-3, true},
                        // Many small messages, as before.
                        {Codec::kTopK, 20e-3, 24e-3, false}};
  for (const Case& each : cases) {
    EncodedTransfer transfer = TransferOf(each.codec, 1, 4e-3, each.seconds);
    transfer.before_s = each.before_s;
    const EncodedSample sample = EncodedSampleOf(transfer, kBelieved);
    EXPECT_EQ(sample.is_of_wire, each.is_of_wire) << Name(each.codec) << ", " << each.seconds;
    EXPECT_NEAR(sample.wire_s, each.seconds, 2e-4);
    transfer.before_s.reset();
    if (each.seconds < 2 * int8_s && each.is_of_wire) continue;
    EXPECT_FALSE(EncodedSampleOf(transfer, kBelieved).is_of_wire);
  }
}

// What servers took is seen in no other way, so each transfer that tells of the wire keeps it.
TEST(EncodedSample, OverServersAnotherWireMakesProcessorsNoQuicker) {
  EncodedTransfer transfer = TransferOf(Codec::kTopK, 1, 4e-3, 60e-3);
  transfer.before_s = 20e-3;
  for (int i = 0; i < 5; ++i) {
    const EncodedSample sample = EncodedSampleOf(transfer, kBelieved);
    ASSERT_TRUE(sample.is_of_wire);
    ASSERT_NEAR(CodingSeconds(sample), 20e-3, 1e-6);
    transfer.before_s = CodingSeconds(sample);
  }
}

// About as long as the wire explains at most, so that some count for it and others do not: what a
// plan expects is the median of all, and not of those that were quick enough to be the wire's.
TEST(EncodedSample, OverServersPlansExpectTheMedianWhicheverTransfersAreOfTheWire) {
  constexpr double kMedian = 9e-3;
  constexpr transport::CostLine kWire{.startup_s = 2e-4, .s_per_byte = 3.2e-8};
  std::mt19937 random(7);
  std::lognormal_distribution<double> spread(0, 0.2);
  LaneSamples lane;
  CodecSamples codecs;
  std::vector<double> took;
  std::size_t of_wire = 0;
  const double wire_bytes =
      EncodedSampleOf(TransferOf(Codec::kTopK, 1, 5e-4, kMedian), kWire).wire_bytes;
  for (std::uint64_t i = 0; i < CodecSamples::kSamplesMax; ++i) {
    took.push_back(kMedian * spread(random));
    const EncodedSample sample =
        EncodedSampleOf(TransferOf(Codec::kTopK, 1, 5e-4, took.back()), kWire);
    codecs.Add(Codec::kTopK, kTransferBytes, sample, 0, i);
    if (sample.is_of_wire) lane.Add(1, sample.wire_bytes, sample.wire_s);
    if (!sample.is_of_wire) lane.AddBound(sample.wire_bytes, sample.wire_s);
    of_wire += sample.is_of_wire ? 1 : 0;
  }
  EXPECT_GT(of_wire, took.size() / 5);
  EXPECT_LT(of_wire, 4 * took.size() / 5);
  std::ranges::sort(took);
  const transport::CostLine line = lane.Fit(kWire);
  CodecCost cost = codecs.Costs({}, 2, 1, {&line, 1}, took.size()).at(0);
  cost.share = wire_bytes / kTransferBytes;
  const double most_plain = transport::kServedPieceCountMax * sizeof(float);
  const double planned_s = plan::EncodedLine({0, line.startup_s, line.s_per_byte}, cost,
                                             {.least_bytes = most_plain * cost.share,
                                              .most_bytes = 1 << 20,
                                              .most_plain_bytes = most_plain,
                                              .pieces_count = 1,
                                              .placed_bytes = most_plain})
                               .Seconds(static_cast<std::uint64_t>(kTransferBytes));
  EXPECT_NEAR(planned_s, took[took.size() / 2], 0.03 * kMedian);
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
