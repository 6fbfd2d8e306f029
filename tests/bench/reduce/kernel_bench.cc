// The kernels on one thread, from the first-level cache to memory. The ideal of every type and
// reduction is the plain float32 sum over the same bytes.
#include "tests/bench/reduce/beside_ideal.h"
#include "tests/bench/reduce/ideal.h"
#include "tests/bench/reduce/mapped_members.h"
#include "transport/reduce/reduce.h"

namespace headrace::transport {
namespace {

// Arguments: members, bytes of each.
void BM_Reduce(benchmark::State& state, DType dtype, Reduction reduction) {
  const auto members_count = static_cast<std::size_t>(state.range(0));
  const auto size = static_cast<std::size_t>(state.range(1));
  const MappedMembers members(members_count, size);
  RunBesideIdeal(
      state, 2 * members_count * size,
      [&] {
        ReduceInto(dtype, reduction, members.bytes(), members.bytes(), 0, size / SizeOf(dtype));
      },
      [&] { IdealSum(members.floats(), members_count, 0, size / sizeof(float)); });
  state.SetLabel(std::string(SimdTargetName()));
}

void Sizes(benchmark::internal::Benchmark* bench) {
  bench->UseManualTime();
  for (const std::int64_t members : {2, 4, 8}) {
    for (const std::int64_t size : {4 << 10, 256 << 10, 64 << 20}) bench->Args({members, size});
  }
}

BENCHMARK_CAPTURE(BM_Reduce, float32_sum, DType::kFloat32, Reduction::kSum)->Apply(Sizes);

// Every type, and the reductions that cost more than a sum, from the second-level cache.
void Cached(benchmark::internal::Benchmark* bench) {
  bench->UseManualTime();
  bench->Args({4, 64 << 10});
}

#define HEADRACE_BENCH_TYPE(name, dtype)                                                   \
  BENCHMARK_CAPTURE(BM_Reduce, name##_sum, dtype, Reduction::kSum)->Apply(Cached);         \
  BENCHMARK_CAPTURE(BM_Reduce, name##_average, dtype, Reduction::kAverage)->Apply(Cached); \
  BENCHMARK_CAPTURE(BM_Reduce, name##_min, dtype, Reduction::kMin)->Apply(Cached);         \
  BENCHMARK_CAPTURE(BM_Reduce, name##_product, dtype, Reduction::kProduct)->Apply(Cached)

HEADRACE_BENCH_TYPE(float32, DType::kFloat32);
HEADRACE_BENCH_TYPE(float64, DType::kFloat64);
HEADRACE_BENCH_TYPE(float16, DType::kFloat16);
HEADRACE_BENCH_TYPE(bfloat16, DType::kBFloat16);
HEADRACE_BENCH_TYPE(int32, DType::kInt32);
HEADRACE_BENCH_TYPE(int64, DType::kInt64);
HEADRACE_BENCH_TYPE(uint8, DType::kUInt8);

}  // namespace
}  // namespace headrace::transport
