#include "service/dispatch/job/encoded_sample.h"

#include <algorithm>

#include "transport/probe/codec_probe.h"

namespace headrace::service {
namespace {

// Where processors take more than this share of the time, the wire may be quicker than it seems.
constexpr double kProcessorBound = 0.8;
// Where it takes longer than the wire explains, processors explain it from this share on: messages
// and waits for other nodes' processors are not in what they are seen to take.
constexpr double kProcessorsExplain = 0.5;
// The wire explains so many times what it is believed to take: lines differ from one hour to the
// next, but not by more, unless others come to use them.
constexpr double kWireExplains = 1.25;
// And a startup that is so much longer, which many transfers of one piece tell best. The more
// pieces a transfer has, the less of its time is its startup.
constexpr double kStartupExplainsSeconds = 2e-3;

// The wire carries two transfers, one for each factor.
EncodedSample FactoredSampleOf(const EncodedTransfer& transfer, double share, double coding_s) {
  constexpr double kFactors = 2;
  EncodedSample sample{.wire_bytes = transfer.bytes * transfer.sent_per_byte * share / kFactors,
                       .wire_s = transfer.seconds / kFactors,
                       .use = transfer.use};
  sample.is_of_wire = coding_s < kProcessorBound * transfer.seconds;
  if (sample.is_of_wire) sample.wire_s -= coding_s / kFactors;
  return sample;
}

}  // namespace

EncodedSample EncodedSampleOf(const EncodedTransfer& transfer, const transport::CostLine& wire) {
  const transport::CodecUse& use = transfer.use;
  const std::uint32_t nodes = transfer.nodes_count;
  const std::uint32_t servers = transfer.servers_count;
  double share = static_cast<double>(use.sent_bytes) / static_cast<double>(use.plain_bytes);
  const double encode_s = static_cast<double>(use.encode_ns) / kSecond;
  const double decode_s = static_cast<double>(use.decode_ns) / kSecond;
  if (transfer.codec.kind == Codec::kPowerSgd) {
    return FactoredSampleOf(transfer, share, encode_s + decode_s);
  }
  if (servers > 0) share += transport::kServedHeaderShare;
  const double pieces =
      transport::PiecesCount(transfer.bytes * share, transfer.bytes, nodes, servers);
  // As if servers were as fast as this node.
  const CodecCost all = transport::WithServers({.codec = transfer.codec,
                                                .encode_s_per_byte = encode_s / transfer.bytes,
                                                .decode_s_per_byte = decode_s / transfer.bytes},
                                               nodes, servers);
  double coding_s = transfer.bytes * (all.encode_s_per_byte + all.decode_s_per_byte);
  EncodedSample sample{
      .wire_bytes = transfer.bytes * transfer.sent_per_byte * share,
      .wire_s = transfer.seconds - coding_s / pieces,
      .use = use,
      .seconds = transfer.seconds,
      .pieces = pieces,
      .placed_bytes = servers > 0 ? transport::kServedPieceCountMax * sizeof(float) : 0.0};
  const double believed_s = wire.s_per_byte * sample.wire_bytes;
  const double longer_s = kStartupExplainsSeconds / pieces;
  const double most_s = kWireExplains * (wire.startup_s + believed_s) + longer_s;
  const bool wire_explains = transfer.before_s || transfer.seconds <= most_s;
  const double bound = wire_explains || servers > 0 ? kProcessorBound : kProcessorsExplain;
  sample.is_of_wire = coding_s < bound * sample.wire_s;
  if (servers > 0 && transfer.seconds > most_s) {
    const double processors_s = std::max(coding_s, transfer.before_s.value_or(0));
    const double known_s = wire.startup_s + believed_s / pieces + processors_s;
    const bool is_slower =
        transfer.before_s && transfer.seconds > kWireExplains * known_s + longer_s;
    if (!is_slower) sample.is_of_wire = false;
    // They are as they were: what they are not seen to take must not be forgotten meanwhile.
    if (is_slower) coding_s = processors_s;
  }
  // Where the wire took so much longer, since others may have come to use it, the transfer says
  // nothing more of processors.
  if (sample.is_of_wire && transfer.seconds > most_s) sample.seconds = 0;
  // How long processors took is only reckoned, and what it leaves may be too little, or the time of
  // servers too much: how long the transfer took says more of it.
  if (!sample.is_of_wire) sample.wire_s = transfer.seconds;
  if (sample.is_of_wire && servers > 0 && coding_s > encode_s + decode_s) {
    sample.use.decode_ns = static_cast<TimeNs>((coding_s - encode_s) * kSecond);
  }
  return sample;
}

double ProcessorSeconds(double seconds, double wire_s, double pieces) {
  const double beyond_s = std::max(seconds - wire_s, 0.0);
  const double piece_s = wire_s / pieces;
  // They are the quicker of the two as long as one piece of theirs explains it.
  return beyond_s <= piece_s ? pieces * beyond_s : seconds - piece_s;
}

}  // namespace headrace::service
