// The kernels on one thread, beside the ideal loop, from the first-level cache to memory.
#include <benchmark/benchmark.h>

#include "tests/bench/reduce/ideal.h"
#include "tests/bench/reduce/mapped_members.h"
#include "transport/reduce/reduce.h"

namespace headrace::transport {
namespace {

// Bytes read and written: every member once each.
void SetMoved(benchmark::State& state, std::size_t members_count, std::size_t size) {
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(2 * members_count * size));
}

void BM_IdealSumFloat32(benchmark::State& state) {
  const auto members_count = static_cast<std::size_t>(state.range(0));
  const auto size = static_cast<std::size_t>(state.range(1));
  const MappedMembers members(members_count, size);
  for (auto _ : state) {
    IdealSum(members.floats(), members_count, 0, size / sizeof(float));
    benchmark::ClobberMemory();
  }
  SetMoved(state, members_count, size);
}

void Reduce(benchmark::State& state, DType dtype, Reduction reduction) {
  const auto members_count = static_cast<std::size_t>(state.range(0));
  const auto size = static_cast<std::size_t>(state.range(1));
  const MappedMembers members(members_count, size);
  for (auto _ : state) {
    ReduceInto(dtype, reduction, members.bytes(), members.bytes(), 0, size / SizeOf(dtype));
    benchmark::ClobberMemory();
  }
  SetMoved(state, members_count, size);
  state.SetLabel(std::string(SimdTargetName()));
}

void BM_SumFloat32(benchmark::State& state) { Reduce(state, DType::kFloat32, Reduction::kSum); }

void BM_Reduce(benchmark::State& state, DType dtype, Reduction reduction) {
  Reduce(state, dtype, reduction);
}

// Members, bytes of each.
void Sizes(benchmark::internal::Benchmark* bench) {
  for (const std::int64_t members : {2, 4, 8}) {
    for (const std::int64_t size : {4 << 10, 256 << 10, 64 << 20}) bench->Args({members, size});
  }
}

BENCHMARK(BM_IdealSumFloat32)->Apply(Sizes);
BENCHMARK(BM_SumFloat32)->Apply(Sizes);

#define HEADRACE_BENCH_TYPE(dtype)                                                                \
  BENCHMARK_CAPTURE(BM_Reduce, dtype##_sum, DType::dtype, Reduction::kSum)->Args({4, 256 << 10}); \
  BENCHMARK_CAPTURE(BM_Reduce, dtype##_average, DType::dtype, Reduction::kAverage)                \
      ->Args({4, 256 << 10});                                                                     \
  BENCHMARK_CAPTURE(BM_Reduce, dtype##_min, DType::dtype, Reduction::kMin)->Args({4, 256 << 10}); \
  BENCHMARK_CAPTURE(BM_Reduce, dtype##_product, DType::dtype, Reduction::kProduct)                \
      ->Args({4, 256 << 10})

HEADRACE_BENCH_TYPE(kFloat32);
HEADRACE_BENCH_TYPE(kFloat64);
HEADRACE_BENCH_TYPE(kFloat16);
HEADRACE_BENCH_TYPE(kBFloat16);
HEADRACE_BENCH_TYPE(kInt32);
HEADRACE_BENCH_TYPE(kInt64);
HEADRACE_BENCH_TYPE(kUInt8);

}  // namespace
}  // namespace headrace::transport
