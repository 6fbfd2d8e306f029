#include "service/dispatch/job/codec_samples.h"

#include <algorithm>

#include "transport/probe/codec_probe.h"

namespace headrace::service {

void CodecSamples::Add(const Codec& codec, double bytes, const transport::CodecUse& use,
                       std::uint64_t iteration) {
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
      .bytes = bytes,
      .encode_s = static_cast<double>(use.encode_ns) / kSecond,
      .decode_s = static_cast<double>(use.decode_ns) / kSecond,
      .plain_bytes = static_cast<double>(use.plain_bytes),
      .sent_bytes = static_cast<double>(use.sent_bytes)};
}

double CodecSamples::Quantile(std::span<const Sample> samples, double Sample::*seconds,
                              double share) {
  struct Rate {
    double s_per_byte = 0;
    double bytes = 0;
  };
  std::array<Rate, kSamplesMax> rates;
  double bytes = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    rates[i] = {samples[i].*seconds / samples[i].bytes, samples[i].bytes};
    bytes += samples[i].bytes;
  }
  const std::span<Rate> sorted(rates.data(), samples.size());
  std::ranges::sort(sorted, {}, &Rate::s_per_byte);
  double below = 0;
  for (const Rate& rate : sorted) {
    below += rate.bytes;
    if (below >= share * bytes) return rate.s_per_byte;
  }
  return 0;
}

std::optional<double> CodecSamples::ServedSecondsPerByte(const Codec& codec,
                                                         std::uint64_t iteration) const {
  const auto found = std::ranges::find(sums_, codec, &Sums::codec);
  if (found == sums_.end() || !found->Counts(iteration)) return std::nullopt;
  return Quantile(found->samples(), &Sample::encode_s, kServedShare) +
         Quantile(found->samples(), &Sample::decode_s, kServedShare);
}

std::vector<CodecCost> CodecSamples::Costs(std::span<const CodecCost> measured,
                                           std::uint32_t nodes_count, std::uint32_t servers_count,
                                           std::uint64_t iteration) const {
  std::vector<CodecCost> costs;
  for (const Sums& sums : sums_) {
    if (!sums.Counts(iteration)) continue;
    double plain = 0;
    double sent = 0;
    for (const Sample& each : sums.samples()) {
      plain += each.plain_bytes;
      sent += each.sent_bytes;
    }
    if (plain <= 0) continue;
    const bool of_transfers = servers_count > 0 && sums.codec.kind != Codec::kPowerSgd;
    const double share = of_transfers ? kServedShare : 0.5;
    const CodecCost cost{.codec = sums.codec,
                         .share = std::clamp(sent / plain, kCodecShareMin, 1.0),
                         .encode_s_per_byte = Quantile(sums.samples(), &Sample::encode_s, share),
                         .decode_s_per_byte = Quantile(sums.samples(), &Sample::decode_s, share)};
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
