// The kernels of all codecs, compiled once for every SIMD target.
#include "transport/codec/blocks.h"

#include "ipc/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "transport/codec/blocks.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which re-includes this file.
#include "hwy/highway.h"
#include "transport/codec/block_kind.h"
#include "transport/codec/kept-inl.h"
#include "transport/codec/lanes-inl.h"
#include "transport/codec/scaled-inl.h"
#include "transport/reduce/half_formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headrace::transport::HWY_NAMESPACE {

// Two bytes an element.
template <class Format>
struct Half {
  static constexpr std::size_t Size(const BlockKind& /*kind*/) { return 2 * kCodecBlock; }

  // What the format can hold of it.
  static HWY_INLINE VF32 Clamped(VF32 v) {
    const VF32 most = hn::Set(F32(), Format::kLargest);
    const VF32 clamped = hn::Min(hn::Max(v, hn::Neg(most)), most);
    return hn::IfThenElse(hn::IsFinite(v), clamped, PlainNaN(F32(), v));
  }
  static HWY_INLINE void Keep(VF32 v, VF32 decoded, float* residual) {
    hn::StoreU(hn::IfThenElseZero(hn::IsFinite(v), hn::Sub(v, decoded)), F32(), residual);
  }

  // Element i of the block lies beside element i + kHalfBlock: the same on all vectors' sizes.
  static void Encode(const BlockKind& /*kind*/, const float* values, float* residual,
                     std::byte* out) {
    for (std::size_t i = 0; i < kHalfBlock; i += hn::Lanes(F32())) {
      const VF32 low = Sum(values + i, residual + i);
      const VF32 high = Sum(values + kHalfBlock + i, residual + kHalfBlock + i);
      Format::StorePair({Clamped(low), Clamped(high)}, out + 4 * i);
      const HalfUnit decoded = Format::LoadPair(out + 4 * i);
      Keep(low, decoded.a, residual + i);
      Keep(high, decoded.b, residual + kHalfBlock + i);
    }
  }
  template <bool kOnto>
  static void Decode(const BlockKind& /*kind*/, const std::byte* in, float* out) {
    for (std::size_t i = 0; i < kHalfBlock; i += hn::Lanes(F32())) {
      const HalfUnit unit = Format::LoadPair(in + 4 * i);
      Put<kOnto>(unit.a, out + i);
      Put<kOnto>(unit.b, out + kHalfBlock + i);
    }
  }

  static HWY_INLINE VF32 Sum(const float* values, const float* residual) {
    return hn::Add(hn::LoadU(F32(), values), hn::LoadU(F32(), residual));
  }
};

// Element i in the lower two bytes of word i, element i + kHalfBlock in the upper two.
struct PairOfBFloat16 {
  static constexpr float kLargest = 0x1.FEp127F;

  static HWY_INLINE void StorePair(HalfUnit unit, std::byte* to) {
    BFloat16Format::Store(unit, to);
  }
  static HWY_INLINE HalfUnit LoadPair(const std::byte* from) { return BFloat16Format::Load(from); }
};

struct PairOfFloat16 {
  static constexpr float kLargest = 65504.0F;

  static HWY_INLINE void StorePair(HalfUnit unit, std::byte* to) {
    const VU32 low = hn::PromoteTo(U32(), Float16Format::Bits(unit.a));
    const VU32 high = hn::PromoteTo(U32(), Float16Format::Bits(unit.b));
    hn::StoreU(hn::Or(low, hn::ShiftLeft<16>(high)), U32(), reinterpret_cast<std::uint32_t*>(to));
  }
  static HWY_INLINE HalfUnit LoadPair(const std::byte* from) {
    const VU32 pairs = hn::LoadU(U32(), reinterpret_cast<const std::uint32_t*>(from));
    const VU32 low = hn::And(pairs, hn::Set(U32(), 0xFFFF));
    return {Float16Format::OfBits(low), Float16Format::OfBits(hn::ShiftRight<16>(pairs))};
  }
};

HWY_INLINE BlockKind KindOf(const Codec& codec, std::size_t count, std::uint64_t seed,
                            std::uint64_t number) {
  return {.count = count, .kept = codec.parameter, .seed = SeedOfBlock(seed, number)};
}

template <class Format>
void EncodeAll(const EncodeCall& call) {
  for (std::uint64_t block = 0; block < call.blocks_count; ++block) {
    const bool last = block + 1 == call.blocks_count;
    const BlockKind kind = KindOf(call.codec, last ? call.last_count : kCodecBlock, call.seed,
                                  call.first_block + block);
    Format::Encode(kind, call.values + block * kCodecBlock, call.residual + block * kCodecBlock,
                   call.out + block * Format::Size(kind));
  }
}

HWY_INLINE void DivideBlock(float* out, float divisor) {
  for (std::size_t i = 0; i < kCodecBlock; i += hn::Lanes(F32())) {
    const VF32 quotient = hn::Div(hn::LoadU(F32(), out + i), hn::Set(F32(), divisor));
    hn::StoreU(PlainNaN(F32(), quotient), F32(), out + i);
  }
}

template <class Format>
void DecodeAll(const DecodeCall& call) {
  for (std::uint64_t block = 0; block < call.blocks_count; ++block) {
    const BlockKind kind = KindOf(call.codec, kCodecBlock, call.seed, call.first_block + block);
    float* const out = call.out + block * kCodecBlock;
    const std::size_t offset = call.offset + block * Format::Size(kind);
    for (std::size_t input = 0; input < call.inputs_count; ++input) {
      if (input == 0 && !call.onto) {
        Format::template Decode<false>(kind, call.inputs[input] + offset, out);
      } else {
        Format::template Decode<true>(kind, call.inputs[input] + offset, out);
      }
    }
    if (call.divisor != 1) DivideBlock(out, call.divisor);
  }
}

// Calls `visit` with the format of the codec, which has blocks of equal size.
template <template <class> class Visit, class Call>
void ForFormat(const Call& call) {
  switch (call.codec.kind) {
    case Codec::kBFloat16:
      return Visit<Half<PairOfBFloat16>>::Run(call);
    case Codec::kFloat16:
      return Visit<Half<PairOfFloat16>>::Run(call);
    case Codec::kInt8:
      return Visit<Scaled<ByteCodes<false>>>::Run(call);
    case Codec::kInt4:
      return Visit<Scaled<NibbleCodes<false>>>::Run(call);
    case Codec::kFloat8E4M3:
      return Visit<Scaled<Float8Codes<Float8E4M3>>>::Run(call);
    case Codec::kFloat8E5M2:
      return Visit<Scaled<Float8Codes<Float8E5M2>>>::Run(call);
    case Codec::kInt8Stochastic:
      return Visit<Scaled<ByteCodes<true>>>::Run(call);
    case Codec::kInt4Stochastic:
      return Visit<Scaled<NibbleCodes<true>>>::Run(call);
    case Codec::kSign:
      return Visit<Signs>::Run(call);
    case Codec::kTopK:
      return Visit<Largest>::Run(call);
    case Codec::kRandomK:
      return Visit<ByChance>::Run(call);
    case Codec::kNone:
    case Codec::kLossless:
    case Codec::kPowerSgd:
      return;
  }
}

template <class Format>
struct EncodeVisit {
  static void Run(const EncodeCall& call) { EncodeAll<Format>(call); }
};
template <class Format>
struct DecodeVisit {
  static void Run(const DecodeCall& call) { DecodeAll<Format>(call); }
};

void EncodeHere(const EncodeCall& call) { ForFormat<EncodeVisit>(call); }
void DecodeHere(const DecodeCall& call) { ForFormat<DecodeVisit>(call); }

}  // namespace headrace::transport::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::transport {

HWY_EXPORT(EncodeHere);
HWY_EXPORT(DecodeHere);

namespace {

// Kept elements have a byte each for their place in the block.
void CheckCodec(const Codec& codec) {
  HR_CHECK(HasBlocks(codec), static_cast<int>(codec.kind));
  const bool keeps = codec.kind == Codec::kTopK || codec.kind == Codec::kRandomK;
  HR_CHECK(!keeps || codec.parameter >= 1, codec.parameter);
}

}  // namespace

void EncodeBlocks(const EncodeCall& call) {
  CheckCodec(call.codec);
  HR_CHECK(call.residual != nullptr, call.blocks_count);
  HR_CHECK(call.last_count >= 1 && call.last_count <= kCodecBlock, call.last_count);
  HWY_DYNAMIC_DISPATCH(EncodeHere)(call);
}

void DecodeBlocks(const DecodeCall& call) {
  CheckCodec(call.codec);
  HR_CHECK(call.inputs_count >= 1 && call.divisor >= 1, call.inputs_count, call.divisor);
  HWY_DYNAMIC_DISPATCH(DecodeHere)(call);
}

}  // namespace headrace::transport
#endif
