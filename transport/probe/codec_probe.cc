#include "transport/probe/codec_probe.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "ipc/base/check.h"
#include "ipc/base/clock.h"
#include "ipc/base/matrix.h"
#include "transport/codec/codec.h"
#include "transport/codec/lossless.h"
#include "transport/codec/low_rank.h"
#include "transport/exchange/limits.h"
#include "transport/exchange/partition.h"

namespace headrace::transport {
namespace {

constexpr std::uint64_t kMeasuredCount = std::uint64_t{1} << 17;  // elements of a range
constexpr std::uint64_t kRangesCount = 8;                         // one after the other
// As a matrix.
constexpr std::uint64_t kMeasuredRows = 256;
constexpr std::uint64_t kMeasuredColumns = kMeasuredCount / kMeasuredRows;
constexpr int kTimes = 3;

// A processor sends or gets a small message in so long, with all that the exchange and the network
// do for it.
constexpr double kMessageSeconds = 8e-6;

class CodecMeasurement {
 public:
  CodecMeasurement()
      : values_(kMeasuredCount * kRangesCount),
        residuals_(values_.size()),
        encoded_(2 * kMeasuredCount * sizeof(float)),
        factors_(kRankMax * (kMeasuredRows + 2 * kMeasuredColumns)) {
    // About as values of a normal distribution: sums of a few even ones, the same everywhere.
    std::uint64_t state = 1;
    for (float& value : values_) {
      value = 0;
      for (int i = 0; i < 4; ++i) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        value += static_cast<float>(state >> 40U) * 0x1p-24F - 0.5F;
      }
    }
  }

  CodecCost Measure(const Codec& codec) {
    CodecCost cost{.codec = codec, .share = EncodedShare(codec)};
    for (int time = 0; time < kTimes; ++time) {
      const std::uint64_t range = next_++ % kRangesCount * kMeasuredCount;
      const TimeNs begin = MonotonicNow();
      const std::size_t size = Encode(codec, range);
      const TimeNs between = MonotonicNow();
      Decode(codec, range, size);
      const TimeNs end = MonotonicNow();
      if (codec == Codec::kLossless) cost.share = static_cast<double>(size) / kBytes;
      const auto per_byte = [](TimeNs ns) {
        return static_cast<double>(std::max<TimeNs>(ns, 1)) / kSecond / kBytes;
      };
      const double encode = per_byte(between - begin);
      const double decode = per_byte(end - between);
      const auto least = [time](double& best, double each) {
        best = time == 0 ? each : std::min(best, each);
      };
      least(cost.encode_s_per_byte, encode);
      least(cost.decode_s_per_byte, decode);
    }
    if (codec.kind == Codec::kPowerSgd) {
      const auto sent =
          static_cast<double>(FactorsCount(codec, kMeasuredRows, kMeasuredCount) * sizeof(float));
      cost.share = sent / kBytes;
    }
    cost.share = std::min(cost.share, 1.0);
    const auto bounded = [](double& each) {
      each = std::min(each, kCodecSecondsPerByteMax * 0.999);
    };
    bounded(cost.encode_s_per_byte);
    bounded(cost.decode_s_per_byte);
    return cost;
  }

 private:
  static constexpr double kBytes = static_cast<double>(kMeasuredCount * sizeof(float));

  // A matrix of the residuals, which may be anything that is finite.
  MatrixRows MatrixAt(const Codec& codec, std::uint64_t range) {
    return {.values = residuals_.data() + range,
            .residual = residuals_.data() + (range + kMeasuredCount) % residuals_.size(),
            .rows = kMeasuredRows,
            .columns = kMeasuredColumns,
            .rank = codec.parameter};
  }
  float* RightFactor(const Codec& codec) {
    return factors_.data() + kMeasuredRows * codec.parameter;
  }
  float* OwnRightFactor(const Codec& codec) {
    return RightFactor(codec) + kMeasuredColumns * codec.parameter;
  }

  void EncodeMatrix(const Codec& codec, std::uint64_t range) {
    const MatrixRows matrix = MatrixAt(codec, range);
    PrepareRightFactor(RightFactor(codec), kMeasuredColumns, codec.parameter, range);
    MultiplyByRightFactor(matrix, RightFactor(codec), factors_.data());
    OrthonormalBasis basis(codec.parameter);
    basis.Add(factors_.data(), kMeasuredRows);
    const bool finite = basis.Finish();
    HR_CHECK(finite, range);
    basis.Replace(factors_.data(), kMeasuredRows);
    std::fill_n(OwnRightFactor(codec), kMeasuredColumns * codec.parameter, 0.0F);
    AddToRightFactor(matrix, factors_.data(), OwnRightFactor(codec));
  }

  std::size_t Encode(const Codec& codec, std::uint64_t range) {
    if (codec.kind == Codec::kPowerSgd) {
      EncodeMatrix(codec, range);
      return 0;
    }
    if (codec == Codec::kLossless) {
      LosslessWriter writer{.out = encoded_.data(), .size_max = kMeasuredCount * sizeof(float) - 1};
      EncodeLossless(values_.data() + range, kMeasuredCount, writer);
      HR_CHECK(writer.fits, writer.size);  // values of that kind take less
      return writer.size;
    }
    transport::Encode(codec, values_.data() + range, residuals_.data() + range, kMeasuredCount,
                      encoded_.data());
    return EncodedSize(codec, kMeasuredCount);
  }

  void Decode(const Codec& codec, std::uint64_t range, std::size_t size) {
    if (codec.kind == Codec::kPowerSgd) {
      return WriteProduct(MatrixAt(codec, range), factors_.data(), RightFactor(codec),
                          OwnRightFactor(codec), 1);
    }
    if (codec == Codec::kLossless) {
      LosslessReader reader{.in = {encoded_.data(), size}};
      for (std::uint64_t i = 0; i < kMeasuredCount; i += kCodecBlock) {
        DecodeLossless(reader, kCodecBlock, residuals_.data() + range + i);
      }
      return;
    }
    const std::byte* const input = encoded_.data();
    DecodeSum(codec, {&input, 1}, kMeasuredCount, true, 1, residuals_.data() + range);
  }

  std::vector<float> values_;
  std::vector<float> residuals_;
  std::vector<std::byte> encoded_;
  std::vector<float> factors_;  // of a matrix: the left one, the right one, the right one anew
  std::uint64_t next_ = 0;
};

}  // namespace

std::vector<CodecCost> MeasureCodecs() {
  CodecMeasurement measurement;
  std::vector<CodecCost> costs;
  for (std::size_t kind = 1; kind < std::size(kCodecNames); ++kind) {
    costs.push_back(measurement.Measure(static_cast<Codec::Kind>(kind)));
  }
  return costs;
}

CodecCost OfTransfer(const CodecCost& measured, std::uint32_t nodes_count,
                     std::uint32_t servers_count) {
  HR_CHECK(nodes_count > 0);
  CodecCost cost = measured;
  if (measured.codec.kind == Codec::kPowerSgd) return cost;  // once, whoever sums the factors
  if (servers_count > 0) return cost;
  const double nodes = nodes_count;
  const bool exchanged = nodes_count == 2 && Loses(measured.codec);
  const double decoded = exchanged ? 2 : (2 * nodes - 1) / nodes;
  cost.decode_s_per_byte =
      std::min(cost.decode_s_per_byte * decoded, kCodecSecondsPerByteMax * 0.999);
  return cost;
}

CodecCost WithServers(const CodecCost& of_transfer, std::uint32_t nodes_count,
                      std::uint32_t servers_count) {
  CodecCost cost = of_transfer;
  const Codec::Kind kind = cost.codec.kind;
  if (servers_count == 0 || kind == Codec::kPowerSgd) return cost;
  const double messages_s = kMessageSeconds / (kServedPieceCountMax * sizeof(float));
  const double nodes = nodes_count;
  const double sums =
      kind == Codec::kRandomK ? 0 : nodes * cost.decode_s_per_byte + cost.encode_s_per_byte;
  const double served = (sums + 2 * nodes * messages_s) / servers_count;
  const double of_node = cost.encode_s_per_byte + cost.decode_s_per_byte + 2 * messages_s;
  cost.decode_s_per_byte =
      std::clamp(std::max(served, of_node) - cost.encode_s_per_byte, cost.decode_s_per_byte,
                 std::max(cost.decode_s_per_byte, kCodecSecondsPerByteMax * 0.999));
  return cost;
}

double PiecesCount(double encoded_bytes, double plain_bytes, std::uint32_t nodes_count,
                   std::uint32_t servers_count) {
  if (servers_count > 0) {
    return std::max(1.0, plain_bytes / static_cast<double>(kServedPieceCountMax * sizeof(float)));
  }
  const double wanted = encoded_bytes / (double{kPiecesPerOwner} * EncodedOwners(nodes_count));
  const double size = std::clamp(wanted, static_cast<double>(kSentPieceSizeMin),
                                 static_cast<double>(ExchangeOptions().piece_size));
  const auto most_plain = static_cast<double>(kEncodedPieceCountMax * sizeof(float));
  return std::max({1.0, encoded_bytes / size, plain_bytes / most_plain});
}

}  // namespace headrace::transport
