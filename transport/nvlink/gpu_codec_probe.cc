#include "transport/nvlink/gpu_codec_probe.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>

#include "ipc/base/clock.h"
#include "ipc/base/matrix.h"
#include "transport/codec/codec.h"
#include "transport/codec/low_rank.h"
#include "transport/memory/device_arena.h"
#include "transport/memory/pinned_memory.h"

namespace headrace::transport {
namespace {

constexpr std::uint64_t kPieceCount = std::uint64_t{1} << 16;  // elements
constexpr std::uint64_t kPiecesCount = 8;
constexpr std::uint64_t kElements = kPieceCount * kPiecesCount;
// As a matrix: as many rows as there are elements, or a few.
constexpr std::uint64_t kColumns = 512;
constexpr std::uint64_t kRows = kElements / kColumns;
constexpr std::uint64_t kFewRows = 8;
constexpr std::uint64_t kFactorsCount = FactorMemoryCount(Codec::kPowerSgd, kRows, kElements);
constexpr std::int8_t kDevice = 0;
// One piece that takes longer says enough, and all of them would delay the start.
constexpr double kPieceLong = 1e-3;  // seconds

class GpuCodecMeasurement {
 public:
  GpuCodecMeasurement(DeviceCodec& codec, PinnedMemory pinned, DeviceArena values)
      : codec_(codec), pinned_(std::move(pinned)), values_(std::move(values)) {}
  // What was launched before one was refused is at work on memory that goes now.
  ~GpuCodecMeasurement() { codec_.Wait(); }
  GpuCodecMeasurement(const GpuCodecMeasurement&) = delete;
  GpuCodecMeasurement& operator=(const GpuCodecMeasurement&) = delete;

  // Fills the values, about as those of a normal distribution: sums of a few even ones. And starts
  // each kernel once, since the first launch loads it.
  Status Prepare() {
    std::vector<float> values(kPieceCount);
    std::uint64_t state = 1;
    for (float& value : values) {
      for (int i = 0; i < 4; ++i) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        value += static_cast<float>(state >> 40U) * 0x1p-24F - 0.5F;
      }
    }
    Encode(Codec(Codec::kBFloat16), values.data(), nullptr, kPieceCount, Encoded(0));
    for (std::uint64_t piece = 0; piece < kPiecesCount; ++piece) {
      const std::byte* const input = OnGpus(Encoded(0));
      if (Status begun = codec_.DecodeSum(kDevice, {&input, 1}, false, 1,
                                          RangeOf(Codec::kBFloat16, piece, kPieceCount));
          !begun) {
        return begun;
      }
    }
    for (const Codec& codec : Codecs()) {
      if (codec.kind == Codec::kPowerSgd) {
        const Result<CodecCost> once = MeasureMatrix(codec, kFewRows);
        if (!once) return once.error();
        continue;
      }
      if (Status begun = StartEncode(codec, 1, kCodecBlock); !begun) return begun;
      if (codec == Codec::kLossless) codec_.Wait();
      if (Status begun = StartDecode(codec, 1, 1, kCodecBlock); !begun) return begun;
    }
    codec_.Wait();
    return {};
  }

  std::vector<Codec> Codecs() const {
    std::vector<Codec> all;
    for (std::size_t kind = 1; kind < std::size(kCodecNames); ++kind) {
      if ((codec_.codecs() >> kind & 1U) != 0) all.emplace_back(static_cast<Codec::Kind>(kind));
    }
    return all;
  }

  Result<CodecCost> Measure(const Codec& codec) {
    if (codec.kind == Codec::kPowerSgd) return MeasureMatrix(codec, kRows);
    std::uint64_t encoded = 1;  // pieces, of which there are few where one takes long
    const Result<double> encode = SecondsPerByte([&](std::uint64_t piece) {
      encoded = std::max(encoded, piece + 1);
      return StartEncode(codec, piece, kPieceCount);
    });
    if (!encode) return encode.error();
    const double share = codec == Codec::kLossless ? LosslessShare() : EncodedShare(codec);
    const Result<double> decode = SecondsPerByte([&](std::uint64_t piece) {
      return StartDecode(codec, piece, piece % encoded, kPieceCount);
    });
    if (!decode) return decode.error();
    return CodecCost{.codec = codec,
                     .share = share,
                     .encode_s_per_byte = Bounded(*encode),
                     .decode_s_per_byte = Bounded(*decode)};
  }

  // Whether all that was started has ended well.
  Status Finish() {
    while (true) {
      codec_.Poll();
      if (const auto ended = codec_.Ended(kDevice, codec_.TicketOf(kDevice))) return *ended;
      codec_.Wait();
    }
  }

  // What is needed of the GPU's: a matrix and its factors.
  static constexpr std::size_t kValuesSize = (kElements + kFactorsCount) * sizeof(float);
  // What is needed of pinned memory: residuals, encodings, which take no more, and their tables, or
  // factors instead of both.
  static constexpr std::size_t kTableCount = LosslessTableCount(kPieceCount);
  static constexpr std::size_t kPinnedSize =
      2 * kElements * sizeof(float) + kPiecesCount * kTableCount * sizeof(std::uint32_t);

 private:
  Status StartEncode(const Codec& codec, std::uint64_t piece, std::uint64_t count) {
    const EncodedRange range = RangeOf(codec, piece, count);
    std::byte* const out = OnGpus(Encoded(piece));
    if (codec != Codec::kLossless) return codec_.Encode(kDevice, range, out);
    return codec_.EncodeLossless(kDevice, range, false, out, OnGpus(Table(piece)));
  }
  // Into that piece, what StartEncode has written for the piece `encoded` and so many elements;
  // losslessly it has ended.
  Status StartDecode(const Codec& codec, std::uint64_t piece, std::uint64_t encoded,
                     std::uint64_t count) {
    const EncodedRange range = RangeOf(codec, piece, count);
    const std::byte* const input = OnGpus(Encoded(encoded));
    if (codec != Codec::kLossless) return codec_.DecodeSum(kDevice, {&input, 1}, true, 1, range);
    LosslessMessage message{.in = input};
    if (EncodedLosslessSize(encoded, count) < count * sizeof(float)) {
      message.table = OnGpus(Table(encoded));
    }
    return codec_.DecodeLossless(kDevice, {&message, 1}, 0, 1, range);
  }
  std::size_t EncodedLosslessSize(std::uint64_t piece, std::uint64_t count) {
    return Table(piece)[LosslessTableCount(count) - 1];
  }
  // The exchange's steps, without the sums of others.
  Result<CodecCost> MeasureMatrix(const Codec& codec, std::uint64_t rows) {
    auto* const values = reinterpret_cast<float*>(values_.address());
    const DeviceMatrix matrix{.rows = {.values = values,
                                       .residual = reinterpret_cast<float*>(pinned_.on_gpus()),
                                       .rows = rows,
                                       .columns = kColumns,
                                       .rank = codec.parameter},
                              .factors = values + kElements,
                              .on_host = reinterpret_cast<float*>(OnGpus(Encoded(0)))};
    auto* const p = reinterpret_cast<float*>(Encoded(0));
    float* const q = p + matrix.LeftCount();
    const TimeNs begin = MonotonicNow();
    PrepareRightFactor(q, kColumns, codec.parameter, 1);
    if (Status begun = codec_.MakeLeftFactor(kDevice, matrix); !begun) return begun.error();
    codec_.Wait();
    OrthonormalBasis basis(codec.parameter);
    basis.Add(p, rows);
    const bool is_finite = basis.Finish();
    basis.Replace(p, rows);
    if (Status begun = codec_.MakeRightFactor(kDevice, matrix, {0, rows}); !begun)
      return begun.error();
    codec_.Wait();
    std::copy_n(q + matrix.RightCount(), matrix.RightCount(), q);
    const TimeNs between = MonotonicNow();
    if (Status begun = codec_.WriteProduct(kDevice, matrix, 1, is_finite); !begun) {
      return begun.error();
    }
    codec_.Wait();
    const auto count = static_cast<double>(rows * kColumns);
    const auto per_byte = [count](TimeNs ns) {
      return Bounded(static_cast<double>(std::max<TimeNs>(ns, 1)) / kSecond /
                     (count * sizeof(float)));
    };
    const auto sent = static_cast<double>(matrix.LeftCount() + matrix.RightCount());
    return CodecCost{.codec = codec,
                     .share = std::min(sent / count, 1.0),
                     .encode_s_per_byte = per_byte(between - begin),
                     .decode_s_per_byte = per_byte(MonotonicNow() - between)};
  }

  double LosslessShare() {
    return static_cast<double>(EncodedLosslessSize(0, kPieceCount)) /
           static_cast<double>(kPieceCount * sizeof(float));
  }

  std::byte* Encoded(std::uint64_t piece) {
    return pinned_.data() + (kElements + piece * kPieceCount) * sizeof(float);
  }
  std::uint32_t* Table(std::uint64_t piece) {
    return reinterpret_cast<std::uint32_t*>(pinned_.data() + 2 * kElements * sizeof(float)) +
           piece * kTableCount;
  }
  std::byte* OnGpus(const std::byte* pinned) const {
    return pinned_.on_gpus() + (pinned - pinned_.data());
  }
  std::uint32_t* OnGpus(const std::uint32_t* pinned) const {
    return reinterpret_cast<std::uint32_t*>(OnGpus(reinterpret_cast<const std::byte*>(pinned)));
  }
  EncodedRange RangeOf(const Codec& codec, std::uint64_t piece, std::uint64_t count) const {
    const RunWalk walk(DType::kFloat32, kElements, std::span<const Run>(), 0);
    return {.codec = codec,
            .walk = walk,
            .residual_walk = walk,
            .range = {.begin = piece * kPieceCount, .count = count},
            .memory = reinterpret_cast<std::byte*>(values_.address()),
            .residual = pinned_.on_gpus(),
            .seed = 1};
  }

  template <typename Start>
  Result<double> SecondsPerByte(Start start) {
    Result<double> seconds = SecondsOf(start, 1);
    if (!seconds || *seconds > kPieceLong) return Each(seconds, 1);
    return Each(SecondsOf(start, kPiecesCount), kPiecesCount);
  }
  template <typename Start>
  Result<double> SecondsOf(Start start, std::uint64_t pieces) {
    const TimeNs begin = MonotonicNow();
    for (std::uint64_t piece = 0; piece < pieces; ++piece) {
      if (Status begun = start(piece); !begun) return begun.error();
    }
    codec_.Wait();
    return static_cast<double>(std::max<TimeNs>(MonotonicNow() - begin, 1)) / kSecond;
  }
  static double Bounded(double each) { return std::min(each, kCodecSecondsPerByteMax * 0.999); }
  static Result<double> Each(const Result<double>& seconds, std::uint64_t pieces) {
    if (!seconds) return seconds;
    return *seconds / static_cast<double>(pieces * kPieceCount * sizeof(float));
  }

  DeviceCodec& codec_;
  PinnedMemory pinned_;  // residuals, then encodings
  DeviceArena values_;
};

}  // namespace

Result<std::vector<CodecCost>> MeasureGpuCodecs(const Gpus& gpus, DeviceCodec& codec) {
  Result<PinnedMemory> pinned = PinnedMemory::Allocate(gpus, GpuCodecMeasurement::kPinnedSize);
  if (!pinned) return pinned.error();
  Result<DeviceArena> values =
      DeviceArena::Allocate(gpus.driver(), kDevice, GpuCodecMeasurement::kValuesSize);
  if (!values) return values.error();
  GpuCodecMeasurement measurement(codec, std::move(*pinned), std::move(*values));
  if (Status prepared = measurement.Prepare(); !prepared) return prepared.error();
  std::vector<CodecCost> costs;
  for (const Codec& each : measurement.Codecs()) {
    Result<CodecCost> cost = measurement.Measure(each);
    if (!cost) return cost.error();
    costs.push_back(*cost);
  }
  if (Status ended = measurement.Finish(); !ended) return ended.error();
  return costs;
}

}  // namespace headrace::transport
