// All kernels of codecs, by name: X(codec, kind, format) for headrace_encode_<codec> and
// headrace_decode_<codec>.
#pragma once

#include "transport/nvlink/codec_bodies.h"

namespace headrace::transport::kernels {

using BFloat16Format = HalfFormat<BFloat16, 0x7F7F0000>;
using Float16Format = HalfFormat<Float16, 0x477FE000>;
using Int8Format = ScaledFormat<ByteNumbers<false>>;
using Int4Format = ScaledFormat<NibbleNumbers<false>>;
using Float8E4M3Format = ScaledFormat<ByteFloats<3, 7, 448>>;
using Float8E5M2Format = ScaledFormat<ByteFloats<2, 15, 57344>>;
using Int8ByChanceFormat = ScaledFormat<ByteNumbers<true>>;
using Int4ByChanceFormat = ScaledFormat<NibbleNumbers<true>>;

}  // namespace headrace::transport::kernels

#define HR_CODEC_KERNELS(X)                               \
  X(bf16, kBFloat16, BFloat16Format)                      \
  X(fp16, kFloat16, Float16Format)                        \
  X(int8, kInt8, Int8Format)                              \
  X(int4, kInt4, Int4Format)                              \
  X(fp8_e4m3, kFloat8E4M3, Float8E4M3Format)              \
  X(fp8_e5m2, kFloat8E5M2, Float8E5M2Format)              \
  X(int8_stochastic, kInt8Stochastic, Int8ByChanceFormat) \
  X(int4_stochastic, kInt4Stochastic, Int4ByChanceFormat) \
  X(sign, kSign, SignFormat)                              \
  X(topk, kTopK, LargestFormat)                           \
  X(randomk, kRandomK, RandomFormat)
