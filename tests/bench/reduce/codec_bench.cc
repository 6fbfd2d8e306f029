// Codecs on one thread, from the second-level cache and from memory: encoding with a residual,
// decoding, and decoding onto a sum. Beside each stands a copy of the same floats.
#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "tests/bench/reduce/beside_ideal.h"
#include "transport/codec/codec.h"
#include "transport/codec/lossless.h"
#include "transport/codec/low_rank.h"

namespace headrace::transport {
namespace {

enum class Work : std::uint8_t { kEncode, kDecode, kDecodeAndAdd };

// Gradients as they often are: normal values whose scale differs from block to block.
std::vector<float> Gradients(std::size_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = normal(random) * static_cast<float>(1 + i / kCodecBlock % 7);
  }
  return values;
}

struct CodecBench {
  CodecBench(Codec codec_used, std::size_t count)
      : codec(codec_used),
        values(Gradients(count)),
        residual(count),
        decoded(count),
        copied(count),
        encoded(codec == Codec::kLossless ? count * sizeof(float) : EncodedSize(codec, count)) {
    Encode();
  }

  void Encode() {
    if (codec != Codec::kLossless) {
      return transport::Encode(codec, values.data(), residual.data(), values.size(),
                               encoded.data());
    }
    writer = {.out = encoded.data(), .size_max = encoded.size() - 1};
    EncodeLossless(values.data(), values.size(), writer);
  }
  void Decode(bool adds) {
    const std::byte* const input = encoded.data();
    if (codec != Codec::kLossless) {
      return DecodeSum(codec, {&input, 1}, values.size(), adds, 1, decoded.data());
    }
    LosslessReader reader{.in = {input, writer.size}};
    DecodeLossless(reader, values.size(), decoded.data());
  }
  void Copy() { std::memcpy(copied.data(), values.data(), values.size() * sizeof(float)); }

  Codec codec;
  std::vector<float> values;
  std::vector<float> residual;
  std::vector<float> decoded;
  std::vector<float> copied;
  std::vector<std::byte> encoded;
  LosslessWriter writer;
};

// Argument: bytes of float32. GB/s are of these, in whatever direction.
void BM_Codec(benchmark::State& state, Codec codec, Work work) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  CodecBench bench(codec, bytes / sizeof(float));
  RunBesideIdeal(
      state, bytes,
      [&] { work == Work::kEncode ? bench.Encode() : bench.Decode(work == Work::kDecodeAndAdd); },
      [&] { bench.Copy(); });
  state.counters["best_copy_GB_per_s"] =
      static_cast<double>(bytes) / state.counters["best_ideal_us"] / 1e3;
}

// The work on a square matrix that crosses as two factors, with a residual: what is done before the
// sum of the left factor, between both sums, and after that of the right one.
struct MatrixBench {
  MatrixBench(std::uint32_t rank, std::size_t side)
      : values(Gradients(side * side)),
        residual(values.size()),
        copied(values.size()),
        p(side * rank),
        q(side * rank),
        own_q(side * rank),
        matrix{.values = values.data(),
               .residual = residual.data(),
               .rows = side,
               .columns = side,
               .rank = rank} {
    PrepareRightFactor(q.data(), side, rank, 1);
    Encode();
  }

  void Encode() {
    MultiplyByRightFactor(matrix, q.data(), p.data());
    OrthonormalBasis basis(matrix.rank);
    basis.Add(p.data(), matrix.rows);
    benchmark::DoNotOptimize(basis.Finish());
    basis.Replace(p.data(), matrix.rows);
    std::fill(own_q.begin(), own_q.end(), 0.0F);
    AddToRightFactor(matrix, p.data(), own_q.data());
  }
  // The values stay of one size: they take turns with the residual.
  void Decode() { WriteProduct(matrix, p.data(), q.data(), own_q.data(), 1); }
  void Copy() { std::memcpy(copied.data(), values.data(), values.size() * sizeof(float)); }

  std::vector<float> values;
  std::vector<float> residual;
  std::vector<float> copied;
  std::vector<float> p;
  std::vector<float> q;
  std::vector<float> own_q;
  MatrixRows matrix;
};

// Argument: the side of the matrix.
void BM_Matrix(benchmark::State& state, std::uint32_t rank, Work work) {
  const auto side = static_cast<std::size_t>(state.range(0));
  MatrixBench bench(rank, side);
  const std::size_t bytes = side * side * sizeof(float);
  RunBesideIdeal(
      state, bytes, [&] { work == Work::kEncode ? bench.Encode() : bench.Decode(); },
      [&] { bench.Copy(); });
  state.counters["best_copy_GB_per_s"] =
      static_cast<double>(bytes) / state.counters["best_ideal_us"] / 1e3;
}

void MatrixSides(benchmark::internal::Benchmark* bench) {
  bench->UseManualTime();
  bench->MinTime(0.05);
  for (const std::int64_t side : {256, 2048}) bench->Arg(side);
}

void CodecSizes(benchmark::internal::Benchmark* bench) {
  bench->UseManualTime();
  bench->MinTime(0.05);
  for (const std::int64_t size : {256 << 10, 16 << 20}) bench->Arg(size);
}

// What is lossless is decoded first and summed then (exchange/encoded.h).
#define HEADRACE_BENCH_CODEC(name, codec)                                              \
  BENCHMARK_CAPTURE(BM_Codec, name##_encode, codec, Work::kEncode)->Apply(CodecSizes); \
  BENCHMARK_CAPTURE(BM_Codec, name##_decode, codec, Work::kDecode)->Apply(CodecSizes)
#define HEADRACE_BENCH_SUMMED_CODEC(name, codec) \
  HEADRACE_BENCH_CODEC(name, codec);             \
  BENCHMARK_CAPTURE(BM_Codec, name##_decode_and_add, codec, Work::kDecodeAndAdd)->Apply(CodecSizes)

HEADRACE_BENCH_SUMMED_CODEC(bf16, Codec::kBFloat16);
HEADRACE_BENCH_SUMMED_CODEC(fp16, Codec::kFloat16);
HEADRACE_BENCH_SUMMED_CODEC(int8, Codec::kInt8);
HEADRACE_BENCH_SUMMED_CODEC(int4, Codec::kInt4);
HEADRACE_BENCH_SUMMED_CODEC(fp8_e4m3, Codec::kFloat8E4M3);
HEADRACE_BENCH_SUMMED_CODEC(fp8_e5m2, Codec::kFloat8E5M2);
HEADRACE_BENCH_SUMMED_CODEC(int8_stochastic, Codec::kInt8Stochastic);
HEADRACE_BENCH_SUMMED_CODEC(int4_stochastic, Codec::kInt4Stochastic);
HEADRACE_BENCH_SUMMED_CODEC(sign, Codec::kSign);
HEADRACE_BENCH_SUMMED_CODEC(topk, Codec::kTopK);
HEADRACE_BENCH_SUMMED_CODEC(randomk, Codec::kRandomK);
HEADRACE_BENCH_CODEC(lossless, Codec::kLossless);

#define HEADRACE_BENCH_MATRIX(rank)                                                                \
  BENCHMARK_CAPTURE(BM_Matrix, powersgd_##rank##_encode, rank, Work::kEncode)->Apply(MatrixSides); \
  BENCHMARK_CAPTURE(BM_Matrix, powersgd_##rank##_decode, rank, Work::kDecode)->Apply(MatrixSides)

HEADRACE_BENCH_MATRIX(1);
HEADRACE_BENCH_MATRIX(4);
HEADRACE_BENCH_MATRIX(16);

}  // namespace
}  // namespace headrace::transport
