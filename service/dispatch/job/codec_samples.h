// The costs of the codecs of a job's gradients on this node, measured by the job's own transfers.
// The next plan is made from them. Plain data.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ipc/base/codec_cost.h"
#include "transport/transport.h"

namespace headrace::service {

class CodecSamples {
 public:
  // The median of so many last transfers counts, by bytes: a thread that encodes and is
  // held up, by others or because it touches memory for the first time, may take 50 times as long.
  static constexpr std::size_t kSamplesMax = 32;
  // Where servers sum it is times of transfers, and as much of them as of those that tell a wire's
  // line (transport::FitBlocks): of these, too, the node counts where they are least.
  static constexpr double kServedShare = 0.65;
  // Fewer bytes say less than what was measured at the service's start.
  static constexpr double kBytesMin = 4 << 20;

  CodecSamples() { sums_.reserve(kCodecCostsMax); }

  // After so many iterations without a transfer of its codec, what transfers told says nothing any
  // more: a plan that stopped encoding while others loaded the processors would not begin again.
  static constexpr std::uint64_t kIterationsKept = 256;

  // A transfer of so many bytes of float32 has ended, of that iteration. A codec beyond
  // kCodecCostsMax is left out until what one of them told is too old.
  void Add(const Codec& codec, double bytes, const transport::CodecUse& use,
           std::uint64_t iteration);

  // What processors took of late for a byte where servers sum, as of that iteration, if it is
  // known.
  std::optional<double> ServedSecondsPerByte(const Codec& codec, std::uint64_t iteration) const;

  // For each codec that was seen or measured, at most kCodecCostsMax, as of that iteration.
  std::vector<CodecCost> Costs(std::span<const CodecCost> measured, std::uint32_t nodes_count,
                               std::uint32_t servers_count, std::uint64_t iteration) const;

 private:
  struct Sample {
    double bytes = 0;
    double encode_s = 0;
    double decode_s = 0;
    double plain_bytes = 0;
    double sent_bytes = 0;
  };
  struct Sums {
    std::span<const Sample> samples() const {
      return {last.data(), std::min(samples_count, kSamplesMax)};
    }
    bool IsOld(std::uint64_t iteration) const {
      return iteration > last_iteration + kIterationsKept;
    }
    bool Counts(std::uint64_t iteration) const {
      return seen_bytes >= kBytesMin && !IsOld(iteration);
    }

    Codec codec;
    std::uint64_t last_iteration = 0;
    double seen_bytes = 0;  // of all transfers
    std::array<Sample, kSamplesMax> last{};
    std::size_t samples_count = 0;  // that were ever added
  };

  // For each byte, the quicker `share` of the bytes took so long or less.
  static double Quantile(std::span<const Sample> samples, double Sample::*seconds, double share);

  std::vector<Sums> sums_;
};

}  // namespace headrace::service
