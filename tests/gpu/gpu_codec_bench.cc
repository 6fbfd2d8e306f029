// The kernels of codecs on one GPU: whether they make the bits of the host's codecs, and how fast,
// beside a plain device copy of the same run, in bytes of float32 a second. Residuals and encoded
// bytes lie in the GPU's memory, or in pinned memory of the host, which is what the lanes between
// nodes give to the kernels.
//
// usage: gpu_codec_bench [MIB [ROUNDS]]
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ipc/base/check.h"
#include "ipc/base/clock.h"
#include "ipc/base/codecs.h"
#include "tests/gpu/figures.h"
#include "tests/support/device_memory.h"
#include "transport/codec/low_rank.h"
#include "transport/memory/gpus.h"
#include "transport/memory/pinned_memory.h"
#include "transport/nvlink/gpu_codec.h"

namespace headrace::gpu {
namespace {

using namespace headrace::transport;  // NOLINT(google-build-using-namespace): what is measured

constexpr Codec kCodecs[] = {Codec::kBFloat16,       Codec::kFloat16,        Codec::kInt8,
                             Codec::kInt4,           Codec::kFloat8E4M3,     Codec::kFloat8E5M2,
                             Codec::kInt8Stochastic, Codec::kInt4Stochastic, Codec::kSign,
                             Codec::kTopK,           Codec::kRandomK};
constexpr std::uint32_t kCtas = 32;
constexpr int kAtATime = 8;  // launches together, so that starts are hidden
constexpr std::size_t kInputs = 2;
constexpr std::uint64_t kColumns = 2048;  // of a matrix, whose factors then take no more than it

std::string Library() {
  const char* const named = std::getenv("HEADRACE_CUDA_LIBRARY");
  return named != nullptr ? named : std::string(kCudaLibrary);
}

// Gradients, and blocks with what is no number, too large or too small for the codec.
std::vector<float> Values(std::size_t count) {
  std::mt19937_64 random(23);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = normal(random);
    const std::uint64_t kind = i / kCodecBlock % 16;
    const auto bits = static_cast<std::uint32_t>(random());
    if (kind == 3) std::memcpy(&values[i], &bits, sizeof bits);
    if (kind == 5) values[i] *= 0x1p-130F;
    if (kind == 7) values[i] *= 0x1p125F;
  }
  return values;
}

enum class Where : std::uint8_t { kOnGpu, kOnHost };

class Bench {
 public:
  static Result<std::unique_ptr<Bench>> Open(std::size_t count) {
    std::unique_ptr<Bench> bench(new Bench(count));
    auto gpus = Gpus::Open(Library());
    if (!gpus) return gpus.error();
    bench->gpus_ = std::move(*gpus);
    for (int i = 0; i < 4; ++i) {
      auto memory = AllocateDeviceMemory(bench->context(), 4 * count);
      if (!memory) return memory.error();
      bench->buffers_.push_back(std::move(*memory));
      auto pinned = PinnedMemory::Allocate(*bench->gpus_, 4 * count);
      if (!pinned) return pinned.error();
      bench->pinned_.push_back(std::move(*pinned));
    }
    auto codec = GpuCodec::Open(*bench->gpus_, kCtas);
    if (!codec) return codec.error();
    bench->codec_ = std::move(*codec);
    return bench;
  }

  const CudaDevice& device() const { return gpus_->devices()[0]; }

  // Bytes of one side a second, as the codecs' figures are.
  Result<double> Copy() {
    return Timed([this] { return CopyTo(At(1), At(0), 4 * count_); });
  }

  // The bits of the host in encoding, residuals and decoding.
  Status CheckBits(Codec codec) {
    const std::vector<float> values = Values(count_);
    std::vector<float> residual = values;
    std::ranges::reverse(residual);
    if (auto done = CopyTo(At(0), AddressOf(values.data()), 4 * count_); !done) return done;
    // The codec's stream keeps no order with that of copies.
    if (auto done = Wait(); !done) return done;
    std::memcpy(pinned_[0].data(), residual.data(), 4 * count_);
    if (auto done = Encode(codec, Where::kOnHost); !done) return done;
    if (auto done = Wait(); !done) return done;
    std::vector<std::byte> encoded(EncodedSize(codec, count_));
    transport::Encode(codec, values.data(), residual.data(), count_, encoded.data(), {.seed = 9});
    if (std::memcmp(encoded.data(), pinned_[1].data(), encoded.size()) != 0) {
      return Error(Code::kMismatch, Name(codec) + ": the GPU encodes other bits than the host");
    }
    if (std::memcmp(residual.data(), pinned_[0].data(), 4 * count_) != 0) {
      return Error(Code::kMismatch, Name(codec) + ": the GPU leaves out other bits than the host");
    }
    return CheckDecoded(codec, encoded);
  }

  // Likewise of the lossless codec, which keeps nothing: in pieces as they go to other nodes, to
  // and from pinned memory.
  Status CheckLosslessBits() {
    const std::vector<float> values = Values(count_);
    if (auto done = CopyTo(At(0), AddressOf(values.data()), 4 * count_); !done) return done;
    if (auto done = Wait(); !done) return done;
    if (auto done = EncodeLossless(); !done) return done;
    if (auto done = Wait(); !done) return done;
    std::vector<float> copy = values;
    EncodedRange range = RangeOf(Codec::kLossless);
    range.memory = reinterpret_cast<std::byte*>(copy.data());
    std::vector<std::byte> expected(4 * kPieceCount);
    for (std::size_t begin = 0; begin < count_; begin += kPieceCount) {
      range.range = PieceAt(begin);
      const std::size_t size = EncodeLosslessRange(range, expected.data());
      if (size != LosslessSize(begin) ||
          std::memcmp(expected.data(), pinned_[1].data() + 4 * begin, size) != 0) {
        return Error(Code::kMismatch, "lossless: the GPU encodes other bits than the host");
      }
    }
    if (auto done = DecodeLossless(); !done) return done;
    if (auto done = Wait(); !done) return done;
    // Each is added to itself, and the sum halved.
    for (float& value : copy) value = std::isnan(value) ? std::bit_cast<float>(kNaN) : value;
    for (float& value : copy) value = (value + value) / 2;
    if (auto done = CopyTo(AddressOf(pinned_[2].on_gpus()), At(0), 4 * count_); !done) return done;
    if (auto done = Wait(); !done) return done;
    if (std::memcmp(copy.data(), pinned_[2].data(), 4 * count_) == 0) return {};
    return Error(Code::kMismatch, "lossless: the GPU decodes other bits than the host");
  }
  Result<double> EncodeLosslessRate() {
    return Timed([&] { return EncodeLossless(); });
  }
  Result<double> DecodeLosslessRate() {
    return Timed([&] { return DecodeLossless(); });
  }

  // Likewise of a matrix, in both factors, what is left out and the product.
  Status CheckMatrixBits(std::uint32_t rank) {
    const DeviceMatrix matrix = MatrixOf(rank, Where::kOnHost);
    const std::uint64_t count = matrix.rows.rows * kColumns;
    std::mt19937_64 random(23);
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) value = normal(random);
    std::vector<float> residual(values.rbegin(), values.rend());
    std::vector<float> factors(matrix.LeftCount() + 2 * matrix.RightCount());
    float* const q = factors.data() + matrix.LeftCount();
    float* const own_q = q + matrix.RightCount();
    PrepareRightFactor(q, kColumns, rank, 9);
    if (auto done = CopyTo(At(0), AddressOf(values.data()), 4 * count); !done) return done;
    if (auto done = Wait(); !done) return done;
    std::ranges::copy(residual, reinterpret_cast<float*>(pinned_[0].data()));
    auto* const on_host = reinterpret_cast<float*>(pinned_[1].data());
    std::ranges::copy(factors, on_host);
    const MatrixRows rows{.values = values.data(),
                          .residual = residual.data(),
                          .rows = matrix.rows.rows,
                          .columns = kColumns,
                          .rank = rank};
    MultiplyByRightFactor(rows, q, factors.data());
    if (auto done = codec_->MakeLeftFactor(0, matrix); !done) return done;
    if (auto done = Wait(); !done) return done;
    if (std::memcmp(factors.data(), on_host, 4 * matrix.LeftCount()) != 0) {
      return Error(Code::kMismatch, "powersgd: the GPU's left factor has other bits");
    }
    OrthonormalBasis basis(rank);
    basis.Add(factors.data(), rows.rows);
    if (!basis.Finish()) return Error(Code::kInternal, "powersgd: a matrix that is not finite");
    basis.Replace(factors.data(), rows.rows);
    std::copy_n(factors.data(), matrix.LeftCount(), on_host);
    AddToRightFactor(rows, factors.data(), own_q);
    const std::uint64_t middle = rows.rows / 2;
    if (auto done = codec_->MakeRightFactor(0, matrix, {0, middle}); !done) return done;
    if (auto done = codec_->MakeRightFactor(0, matrix, {middle, rows.rows}); !done) return done;
    if (auto done = Wait(); !done) return done;
    const std::uint64_t own_at = matrix.LeftCount() + matrix.RightCount();
    if (std::memcmp(own_q, on_host + own_at, 4 * matrix.RightCount()) != 0) {
      return Error(Code::kMismatch, "powersgd: the GPU's right factor has other bits");
    }
    return CheckProduct(matrix, rows, factors.data());
  }
  // All that a matrix takes but what the host makes of its factors.
  Result<double> EncodeMatrixRate(std::uint32_t rank, Where where) {
    const DeviceMatrix matrix = MatrixOf(rank, where);
    return Timed([&]() -> Status {
      if (auto done = codec_->MakeLeftFactor(0, matrix); !done) return done;
      return codec_->MakeRightFactor(0, matrix, {0, matrix.rows.rows});
    });
  }
  Result<double> DecodeMatrixRate(std::uint32_t rank, Where where) {
    return Timed([&] { return codec_->WriteProduct(0, MatrixOf(rank, where), kInputs, true); });
  }

  Result<double> EncodeRate(Codec codec, Where where) {
    return Timed([&] { return Encode(codec, where); });
  }
  Result<double> DecodeRate(Codec codec, Where where) {
    return Timed([&] { return Decode(codec, where); });
  }

 private:
  explicit Bench(std::size_t count) : count_(count) {}
  const CudaFunctions& call() const { return gpus_->driver().call(); }
  const PrimaryContext& context() const { return gpus_->contexts()[0]; }
  CuAddress At(std::size_t buffer) const { return buffers_[buffer].get().thing; }
  std::byte* Place(Where where, std::size_t buffer) const {
    if (where == Where::kOnHost) return pinned_[buffer].on_gpus();
    return reinterpret_cast<std::byte*>(At(buffer));
  }

  template <typename Start>
  Result<double> Timed(Start start) {
    if (auto done = start(); !done) return done.error();
    if (auto done = Wait(); !done) return done.error();
    const TimeNs begin = MonotonicNow();
    for (int i = 0; i < kAtATime; ++i) {
      if (auto done = start(); !done) return done.error();
    }
    if (auto done = Wait(); !done) return done.error();
    return kAtATime * 4.0 * static_cast<double>(count_) /
           (static_cast<double>(MonotonicNow() - begin) / 1e9);
  }
  Status Wait() {
    const CurrentContext current(gpus_->driver(), context().get().context);
    if (auto done = gpus_->driver().Check(call().ctx_synchronize(), "wait"); !done) return done;
    for (;;) {
      codec_->Poll();
      if (const auto ended = codec_->Ended(0, codec_->TicketOf(0))) return *ended;
    }
  }
  Status CopyTo(CuAddress to, CuAddress from, std::size_t size) {
    const CurrentContext current(gpus_->driver(), context().get().context);
    return gpus_->driver().Check(call().memcpy_async(to, from, size, nullptr), "copy");
  }
  EncodedRange RangeOf(Codec codec) const {
    return {.codec = codec,
            .walk = RunWalk(DType::kFloat32, count_, std::span<const Run>(), 0),
            .residual_walk = RunWalk(DType::kFloat32, count_, std::span<const Run>(), 0),
            .range = {0, count_},
            .memory = reinterpret_cast<std::byte*>(At(0)),
            .seed = 9};
  }
  // Of buffer 0, with residuals in place 0 or buffer 3, into place 1.
  Status Encode(Codec codec, Where where) {
    EncodedRange range = RangeOf(codec);
    range.residual = Place(where, where == Where::kOnHost ? 0 : 3);
    return codec_->Encode(0, range, Place(where, 1));
  }
  // Two inputs, which are the same, into buffer 0.
  Status Decode(Codec codec, Where where) {
    const std::byte* const inputs[kInputs] = {Place(where, 1), Place(where, 1)};
    return codec_->DecodeSum(0, inputs, false, kInputs, RangeOf(codec));
  }
  Status CheckDecoded(Codec codec, const std::vector<std::byte>& encoded) {
    if (auto done = Decode(codec, Where::kOnHost); !done) return done;
    if (auto done = Wait(); !done) return done;
    std::vector<float> expected(count_);
    const std::byte* const inputs[kInputs] = {encoded.data(), encoded.data()};
    transport::DecodeSum(codec, inputs, count_, false, kInputs, expected.data(), {.seed = 9});
    if (auto done = CopyTo(AddressOf(pinned_[2].on_gpus()), At(0), 4 * count_); !done) return done;
    if (auto done = Wait(); !done) return done;
    if (std::memcmp(expected.data(), pinned_[2].data(), 4 * count_) == 0) return {};
    return Error(Code::kMismatch, Name(codec) + ": the GPU decodes other bits than the host");
  }

  // Of as many rows as fit, with residuals in place 0 or buffer 3, factors in buffer 2 and place 1.
  DeviceMatrix MatrixOf(std::uint32_t rank, Where where) const {
    return {.rows = {.values = reinterpret_cast<float*>(At(0)),
                     .residual =
                         reinterpret_cast<float*>(Place(where, where == Where::kOnHost ? 0 : 3)),
                     .rows = count_ / kColumns,
                     .columns = kColumns,
                     .rank = rank},
            .factors = reinterpret_cast<float*>(At(2)),
            .on_host = reinterpret_cast<float*>(pinned_[1].on_gpus())};
  }
  // The right factor is the node's own, as if it were alone.
  Status CheckProduct(const DeviceMatrix& matrix, const MatrixRows& rows, float* factors) {
    const std::uint64_t right = matrix.RightCount();
    float* const q = factors + matrix.LeftCount();
    std::copy_n(q + right, right, q);
    auto* const on_host = reinterpret_cast<float*>(pinned_[1].data());
    std::copy_n(q, right, on_host + matrix.LeftCount());
    transport::WriteProduct(rows, factors, q, q + right, kInputs);
    if (auto done = codec_->WriteProduct(0, matrix, kInputs, true); !done) return done;
    if (auto done = Wait(); !done) return done;
    const std::size_t size = 4 * rows.rows * kColumns;
    if (std::memcmp(rows.residual, pinned_[0].data(), size) != 0) {
      return Error(Code::kMismatch, "powersgd: the GPU leaves out other bits than the host");
    }
    if (auto done = CopyTo(AddressOf(pinned_[2].on_gpus()), At(0), size); !done) return done;
    if (auto done = Wait(); !done) return done;
    if (std::memcmp(rows.values, pinned_[2].data(), size) == 0) return {};
    return Error(Code::kMismatch, "powersgd: the GPU's product has other bits than the host's");
  }

  static constexpr std::size_t kPieceCount = 24576;  // 96 KiB
  static constexpr std::uint32_t kNaN = 0x7FC00000;
  Partition::Range PieceAt(std::size_t begin) const {
    return {begin, std::min(kPieceCount, count_ - begin)};
  }
  // In place 3, one table for each piece.
  std::size_t TableAt(std::size_t begin) const {
    return begin / kPieceCount * LosslessTableCount(kPieceCount) * sizeof(std::uint32_t);
  }
  std::uint32_t LosslessSize(std::size_t begin) const {
    const std::size_t last = LosslessTableCount(PieceAt(begin).count) - 1;
    return reinterpret_cast<std::uint32_t*>(pinned_[3].data() + TableAt(begin))[last];
  }
  Status EncodeLossless() {
    EncodedRange range = RangeOf(Codec::kLossless);
    for (std::size_t begin = 0; begin < count_; begin += kPieceCount) {
      range.range = PieceAt(begin);
      auto* const table = reinterpret_cast<std::uint32_t*>(pinned_[3].on_gpus() + TableAt(begin));
      const Status done =
          codec_->EncodeLossless(0, range, false, pinned_[1].on_gpus() + 4 * begin, table);
      if (!done) return done;
    }
    return {};
  }
  // What was encoded, added to what it was encoded from.
  Status DecodeLossless() {
    EncodedRange range = RangeOf(Codec::kLossless);
    for (std::size_t begin = 0; begin < count_; begin += kPieceCount) {
      range.range = PieceAt(begin);
      LosslessMessage message{.in = pinned_[1].on_gpus() + 4 * begin};
      if (LosslessSize(begin) < 4 * range.range.count) {
        message.table = reinterpret_cast<std::uint32_t*>(pinned_[3].on_gpus() + TableAt(begin));
      }
      if (auto done = codec_->DecodeLossless(0, {&message, 1}, 0, 2, range); !done) return done;
    }
    return {};
  }

  std::size_t count_;
  std::unique_ptr<Gpus> gpus_;
  std::vector<DeviceMemory> buffers_;
  std::vector<PinnedMemory> pinned_;
  std::unique_ptr<GpuCodec> codec_;
};

Status Measure(Bench& bench, Codec codec, std::size_t rounds, double copy) {
  if (auto done = bench.CheckBits(codec); !done) return done;
  for (const Where where : {Where::kOnGpu, Where::kOnHost}) {
    std::vector<double> encodes;
    std::vector<double> decodes;
    for (std::size_t round = 0; round < rounds; ++round) {
      const auto encode = bench.EncodeRate(codec, where);
      if (!encode) return encode.error();
      const auto decode = bench.DecodeRate(codec, where);
      if (!decode) return decode.error();
      encodes.push_back(*encode);
      decodes.push_back(*decode);
    }
    const std::string text = where == Where::kOnGpu ? "GPU's memory" : "pinned memory";
    const std::string goal = fmt::format("a copy: {:.0f} GB/s", copy / 1e9);
    PrintFigure(Name(codec) + ", encode, residual and result in " + text, Median(encodes) / 1e9,
                "GB/s", goal);
    PrintFigure(Name(codec) + ", decode and add two from " + text, Median(decodes) / 1e9, "GB/s",
                goal);
  }
  return {};
}

Status MeasureLossless(Bench& bench, std::size_t rounds, double copy) {
  if (auto done = bench.CheckLosslessBits(); !done) return done;
  std::vector<double> encodes;
  std::vector<double> decodes;
  for (std::size_t round = 0; round < rounds; ++round) {
    const auto encode = bench.EncodeLosslessRate();
    if (!encode) return encode.error();
    const auto decode = bench.DecodeLosslessRate();
    if (!decode) return decode.error();
    encodes.push_back(*encode);
    decodes.push_back(*decode);
  }
  const std::string goal = fmt::format("a copy: {:.0f} GB/s", copy / 1e9);
  PrintFigure("lossless, encode to pinned memory", Median(encodes) / 1e9, "GB/s", goal);
  PrintFigure("lossless, decode and add from pinned memory", Median(decodes) / 1e9, "GB/s", goal);
  return {};
}

Status MeasureMatrix(Bench& bench, std::uint32_t rank, std::size_t rounds, double copy) {
  if (auto done = bench.CheckMatrixBits(rank); !done) return done;
  for (const Where where : {Where::kOnGpu, Where::kOnHost}) {
    std::vector<double> encodes;
    std::vector<double> decodes;
    for (std::size_t round = 0; round < rounds; ++round) {
      const auto encode = bench.EncodeMatrixRate(rank, where);
      if (!encode) return encode.error();
      const auto decode = bench.DecodeMatrixRate(rank, where);
      if (!decode) return decode.error();
      encodes.push_back(*encode);
      decodes.push_back(*decode);
    }
    const std::string text = fmt::format("powersgd of rank {}, residual in {}", rank,
                                         where == Where::kOnGpu ? "GPU's memory" : "pinned memory");
    const std::string goal = fmt::format("a copy: {:.0f} GB/s", copy / 1e9);
    PrintFigure(text + ", both factors", Median(encodes) / 1e9, "GB/s", goal);
    PrintFigure(text + ", product and what it leaves out", Median(decodes) / 1e9, "GB/s", goal);
  }
  return {};
}

int Run(std::size_t mib, std::size_t rounds) {
  // An odd number of elements, so that the last block is a part of one.
  auto bench = Bench::Open((mib << 20) / sizeof(float) - 1);
  if (!bench) {
    if (bench.error().code() == Code::kUnavailable) return Skip(bench.error().text());
    fmt::print(stderr, "gpu_codec_bench: {}\n", bench.error().text());
    return 1;
  }
  fmt::print("{}\n", (*bench)->device().name);
  const auto copy = (*bench)->Copy();
  Status done = copy ? Status() : Status(copy.error());
  for (const Codec codec : kCodecs) {
    if (done) done = Measure(**bench, codec, rounds, *copy);
  }
  if (done) done = MeasureLossless(**bench, rounds, *copy);
  for (const std::uint32_t rank : {kRankDefault, kRankMax}) {
    if (done) done = MeasureMatrix(**bench, rank, rounds, *copy);
  }
  if (done) return 0;
  fmt::print(stderr, "gpu_codec_bench: {}\n", done.error().text());
  return 1;
}

}  // namespace
}  // namespace headrace::gpu

int main(int argc, char** argv) {
  const auto number = [&](int index, long usual) {
    return argc > index ? std::strtol(argv[index], nullptr, 10) : usual;
  };
  const long mib = number(1, 64);
  const long rounds = number(2, 5);
  if (argc > 3 || mib < 1 || mib > 4096 || rounds < 1 || rounds > 1000) {
    fmt::print(stderr, "usage: gpu_codec_bench [MIB [ROUNDS]]\n");
    return 2;
  }
  return headrace::gpu::Run(static_cast<std::size_t>(mib), static_cast<std::size_t>(rounds));
}
