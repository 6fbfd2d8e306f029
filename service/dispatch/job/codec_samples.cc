#include "service/dispatch/job/codec_samples.h"

#include <algorithm>

#include "transport/probe/codec_probe.h"

namespace headrace::service {

void CodecSamples::Add(const Codec& codec, double bytes, const transport::CodecUse& use,
                       std::uint64_t iteration) {
  if (codec == Codec::kNone || bytes <= 0) return;
  auto found = std::ranges::find(sums_, codec, &Sums::codec);
  if (found == sums_.end()) {
    if (sums_.size() == kCodecCostsMax) return;
    found = sums_.insert(sums_.end(), Sums{.codec = codec});
  }
  if (found->IsOld(iteration)) *found = Sums{.codec = codec};
  found->last_iteration = iteration;
  found->seen_bytes += bytes;
  const auto add = [](double& sum, double value) { sum = sum * kKeep + value; };
  add(found->bytes, bytes);
  add(found->encode_s, static_cast<double>(use.encode_ns) / kSecond);
  add(found->decode_s, static_cast<double>(use.decode_ns) / kSecond);
  add(found->plain_bytes, static_cast<double>(use.plain_bytes));
  add(found->sent_bytes, static_cast<double>(use.sent_bytes));
}

std::vector<CodecCost> CodecSamples::Costs(std::span<const CodecCost> measured,
                                           std::uint32_t nodes_count, std::uint32_t servers_count,
                                           std::uint64_t iteration) const {
  std::vector<CodecCost> costs;
  for (const Sums& sums : sums_) {
    if (sums.seen_bytes < kBytesMin || sums.plain_bytes <= 0 || sums.IsOld(iteration)) continue;
    const CodecCost cost{
        .codec = sums.codec,
        .share = std::clamp(sums.sent_bytes / sums.plain_bytes, kCodecShareMin, 1.0),
        .encode_s_per_byte = sums.encode_s / sums.bytes,
        .decode_s_per_byte = sums.decode_s / sums.bytes};
    if (IsCodecCost(cost)) costs.push_back(cost);
  }
  for (const CodecCost& each : measured) {
    if (costs.size() == kCodecCostsMax) break;
    if (std::ranges::find(costs, each.codec, &CodecCost::codec) != costs.end()) continue;
    costs.push_back(transport::OfTransfer(each, nodes_count, servers_count));
  }
  return costs;
}

}  // namespace headrace::service
