#include "tests/bench/reduce/ideal.h"

// One clone per instruction set, chosen by the loader, so that the yardstick is no shorter than the
// kernels on a machine with wider vectors.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HEADRACE_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define HEADRACE_CLONES
#endif

namespace headrace::transport {
namespace {

HEADRACE_CLONES void Sum2(float* __restrict a, float* __restrict b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float sum = a[i] + b[i];
    a[i] = sum;
    b[i] = sum;
  }
}

HEADRACE_CLONES void Sum4(float* __restrict a, float* __restrict b, float* __restrict c,
                          float* __restrict d, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float sum = a[i] + b[i] + c[i] + d[i];
    a[i] = sum;
    b[i] = sum;
    c[i] = sum;
    d[i] = sum;
  }
}

HEADRACE_CLONES void Sum8(float* __restrict a, float* __restrict b, float* __restrict c,
                          float* __restrict d, float* __restrict e, float* __restrict f,
                          float* __restrict g, float* __restrict h, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float sum = a[i] + b[i] + c[i] + d[i] + e[i] + f[i] + g[i] + h[i];
    a[i] = sum;
    b[i] = sum;
    c[i] = sum;
    d[i] = sum;
    e[i] = sum;
    f[i] = sum;
    g[i] = sum;
    h[i] = sum;
  }
}

}  // namespace

void IdealSum(float* const* m, std::size_t members_count, std::size_t begin, std::size_t end) {
  const std::size_t count = end - begin;
  switch (members_count) {
    case 2:
      return Sum2(m[0] + begin, m[1] + begin, count);
    case 4:
      return Sum4(m[0] + begin, m[1] + begin, m[2] + begin, m[3] + begin, count);
    case 8:
      return Sum8(m[0] + begin, m[1] + begin, m[2] + begin, m[3] + begin, m[4] + begin,
                  m[5] + begin, m[6] + begin, m[7] + begin, count);
    default:
      __builtin_trap();  // no such loop: a mistake in the benchmark
  }
}

}  // namespace headrace::transport
