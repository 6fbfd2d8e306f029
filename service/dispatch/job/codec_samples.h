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

#include "ipc/base/clock.h"
#include "ipc/base/codec_cost.h"
#include "service/dispatch/job/encoded_sample.h"
#include "transport/network.h"

namespace headrace::service {

class CodecSamples {
 public:
  // The median of so many last transfers counts, by bytes: a thread that encodes and is
  // held up, by others or because it touches memory for the first time, may take 50 times as long.
  static constexpr std::size_t kSamplesMax = 32;
  // Fewer bytes say less than what was measured at the service's start.
  static constexpr double kBytesMin = 4 << 20;

  CodecSamples() { sums_.reserve(kCodecCostsMax); }

  // After so many iterations without a transfer of its codec, what transfers told says nothing any
  // more: a plan that stopped encoding while others loaded the processors would not begin again.
  static constexpr std::uint64_t kIterationsKept = 256;

  // A transfer of so many bytes of float32 has ended, of that iteration, over the wire whose line
  // has the place `wire` among the `lines` below. A codec beyond kCodecCostsMax is left out until
  // what one of them told is too old.
  void Add(const Codec& codec, double bytes, const EncodedSample& sample, std::size_t wire,
           std::uint64_t iteration);
  // Transfers go over other wires from now on than those of the lines: what processors took beside
  // them is known, and what transfers took says nothing any more.
  void OnWiresChanged(std::span<const transport::CostLine> lines);

  // How long processors took of late for a transfer of so many bytes, as of that iteration, beside
  // wires of these lines. If it is known.
  std::optional<double> ProcessorSecondsOf(const Codec& codec, double bytes,
                                           std::span<const transport::CostLine> lines,
                                           std::uint64_t iteration) const;

  // For each codec that was seen or measured, at most kCodecCostsMax, as of that iteration. With
  // them and wires of these lines a plan expects what transfers took.
  std::vector<CodecCost> Costs(std::span<const CodecCost> measured, std::uint32_t nodes_count,
                               std::uint32_t servers_count,
                               std::span<const transport::CostLine> lines,
                               std::uint64_t iteration) const;

 private:
  struct Sample {
    double bytes = 0;
    std::size_t wire = 0;
    EncodedSample transfer;
    bool of_transfer = false;  // or of what this node's processor did by itself

    double EncodeSeconds() const { return static_cast<double>(transfer.use.encode_ns) / kSecond; }
    double DecodeSeconds() const { return static_cast<double>(transfer.use.decode_ns) / kSecond; }
    // What all processors took.
    double Seconds(std::span<const transport::CostLine> lines) const;
    double SecondsPerByte(std::span<const transport::CostLine> lines) const;
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
    // For each byte, half of the bytes took so long or less: `s_per_byte(sample)`.
    template <typename PerByte>
    double Median(PerByte s_per_byte) const;

    Codec codec;
    std::uint64_t last_iteration = 0;
    double seen_bytes = 0;  // of all transfers
    std::array<Sample, kSamplesMax> last{};
    std::size_t samples_count = 0;  // that were ever added
  };

  std::vector<Sums> sums_;
};

}  // namespace headrace::service
