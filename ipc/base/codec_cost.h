// The cost of a codec on a node: measured in transport/, reported to a job's leader, used by plans.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ipc/base/codecs.h"

namespace headrace {

// A transfer of fewer bytes crosses as it is: it takes as long.
inline constexpr std::uint64_t kEncodedBytesMin = std::uint64_t{16} << 10;

// For each byte of a transfer of float32, on one node: bytes that cross, and processor time.
struct CodecCost {
  Codec codec;
  double share = 1;
  double encode_s_per_byte = 0;
  double decode_s_per_byte = 0;
  // As long as transfers took that the wire does not explain, waits for other nodes included; or
  // what this node's processor does by itself.
  bool of_transfers = false;

  friend bool operator==(const CodecCost&, const CodecCost&) = default;
};

// Costs of different codecs; a node reports no more, parameters included.
inline constexpr std::size_t kCodecCostsMax = 16;
// No processor is as slow.
inline constexpr double kCodecSecondsPerByteMax = 1e-3;
// No codec makes fewer bytes of what it encodes, and none makes more of them.
inline constexpr double kCodecShareMin = 1e-3;
constexpr bool IsCodecCost(const CodecCost& cost) {
  const auto is_rate = [](double seconds) {
    return seconds >= 0 && seconds < kCodecSecondsPerByteMax;
  };
  return cost.codec != Codec::kNone && cost.share >= kCodecShareMin && cost.share <= 1 &&
         is_rate(cost.encode_s_per_byte) && is_rate(cost.decode_s_per_byte);
}

}  // namespace headrace
