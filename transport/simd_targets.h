// The SIMD targets that kernels are compiled for. Included before Highway, in all of their sources.
#pragma once

// Those worth their code size: x86 with and without AVX2 and AVX-512, and a portable one that
// stands for everything older. SVE vectors have no fixed size, so Arm runs NEON.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
