#include "service/dispatch/job/codec_samples.h"

#include <algorithm>

#include "ipc/base/check.h"
#include "transport/probe/codec_probe.h"

namespace headrace::service {

void CodecSamples::Add(const Codec& codec, double bytes, const EncodedSample& sample,
                       std::size_t wire, std::uint64_t iteration) {
  if (codec == Codec::kNone || bytes <= 0) return;
  auto found = std::ranges::find(sums_, codec, &Sums::codec);
  if (found == sums_.end()) {
    found = std::ranges::find_if(sums_, [&](const Sums& sums) { return sums.IsOld(iteration); });
    if (found == sums_.end() && sums_.size() == kCodecCostsMax) return;
    if (found == sums_.end()) found = sums_.insert(sums_.end(), Sums{.codec = codec});
  }
  if (found->codec != codec || found->IsOld(iteration)) *found = Sums{.codec = codec};
  found->last_iteration = iteration;
  found->seen_bytes += bytes;
  found->last[found->samples_count++ % kSamplesMax] = {
      .bytes = bytes, .wire = wire, .transfer = sample, .of_transfer = sample.seconds > 0};
}

void CodecSamples::OnWiresChanged(std::span<const transport::CostLine> lines) {
  for (Sums& sums : sums_) {
    for (Sample& each : sums.last) {
      const double decode_s = each.Seconds(lines) - each.EncodeSeconds();
      each.transfer.use.decode_ns = static_cast<TimeNs>(decode_s * kSecond);
      each.transfer.seconds = 0;
    }
  }
}

double CodecSamples::Sample::Seconds(std::span<const transport::CostLine> lines) const {
  const double known_s = EncodeSeconds() + DecodeSeconds();
  if (transfer.seconds == 0) return known_s;
  HR_CHECK(wire < lines.size(), wire, lines.size());
  const transport::CostLine& line = lines[wire];
  return std::max(known_s,
                  ProcessorSeconds(transfer.seconds - line.startup_s,
                                   line.s_per_byte * transfer.wire_bytes, transfer.pieces));
}

// As plan::EncodedLine has it: with a piece more where processors are slower than the wire.
double CodecSamples::Sample::SecondsPerByte(std::span<const transport::CostLine> lines) const {
  const double seconds = Seconds(lines);
  if (transfer.placed_bytes == 0) return seconds / bytes;
  const double wire_s = lines[wire].s_per_byte * transfer.wire_bytes;
  return std::max(seconds / (bytes + transfer.placed_bytes), std::min(seconds, wire_s) / bytes);
}

template <typename PerByte>
double CodecSamples::Sums::Median(PerByte s_per_byte) const {
  struct Rate {
    double s_per_byte = 0;
    double bytes = 0;
  };
  std::array<Rate, kSamplesMax> rates;
  double bytes = 0;
  for (std::size_t i = 0; i < samples().size(); ++i) {
    rates[i] = {s_per_byte(last[i]), last[i].bytes};
    bytes += last[i].bytes;
  }
  const std::span<Rate> sorted(rates.data(), samples().size());
  std::ranges::sort(sorted, {}, &Rate::s_per_byte);
  double below = 0;
  for (const Rate& rate : sorted) {
    below += rate.bytes;
    if (below >= bytes / 2) return rate.s_per_byte;
  }
  return 0;
}

std::optional<double> CodecSamples::ProcessorSecondsOf(const Codec& codec, double bytes,
                                                       std::span<const transport::CostLine> lines,
                                                       std::uint64_t iteration) const {
  const auto found = std::ranges::find(sums_, codec, &Sums::codec);
  if (found == sums_.end() || !found->Counts(iteration)) return std::nullopt;
  return bytes *
         found->Median([&](const Sample& each) { return each.Seconds(lines) / each.bytes; });
}

std::vector<CodecCost> CodecSamples::Costs(std::span<const CodecCost> measured,
                                           std::uint32_t nodes_count, std::uint32_t servers_count,
                                           std::span<const transport::CostLine> lines,
                                           std::uint64_t iteration) const {
  std::vector<CodecCost> costs;
  for (const Sums& sums : sums_) {
    if (!sums.Counts(iteration)) continue;
    double plain = 0;
    double sent = 0;
    double of_transfers = 0;  // bytes, less those of what this node's processor did by itself
    for (const Sample& each : sums.samples()) {
      of_transfers += each.of_transfer ? each.bytes : -each.bytes;
      plain += static_cast<double>(each.transfer.use.plain_bytes);
      sent += static_cast<double>(each.transfer.use.sent_bytes);
    }
    if (plain <= 0) continue;
    const double encode =
        sums.Median([](const Sample& each) { return each.EncodeSeconds() / each.bytes; });
    const double all = sums.Median([&](const Sample& each) { return each.SecondsPerByte(lines); });
    const CodecCost cost{.codec = sums.codec,
                         .share = std::clamp(sent / plain, kCodecShareMin, 1.0),
                         .encode_s_per_byte = std::min(encode, all),
                         .decode_s_per_byte = std::max(all - encode, 0.0),
                         .of_transfers = of_transfers > 0};
    if (IsCodecCost(cost)) costs.push_back(cost);
  }
  for (const CodecCost& each : measured) {
    if (costs.size() == kCodecCostsMax) break;
    if (std::ranges::find(costs, each.codec, &CodecCost::codec) != costs.end()) continue;
    costs.push_back(transport::WithServers(transport::OfTransfer(each, nodes_count, servers_count),
                                           nodes_count, servers_count));
  }
  return costs;
}

}  // namespace headrace::service
