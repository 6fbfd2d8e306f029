// The kernels of all codecs, compiled once for every SIMD target.
#include "transport/codec/blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "transport/codec/blocks.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which re-includes this file.
#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "transport/reduce/half_formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headrace::transport::HWY_NAMESPACE {

using I8 = hn::Rebind<std::int8_t, F32>;
using U8 = hn::Rebind<std::uint8_t, F32>;
using VI32 = hn::Vec<I32>;

inline constexpr std::size_t kHalfBlock = kCodecBlock / 2;
inline constexpr std::int32_t kInfinityBits = 0x7F800000;

HWY_INLINE VI32 MagnitudeBits(VF32 v) {
  return hn::BitCast(I32(), hn::And(hn::BitCast(U32(), v), hn::Set(U32(), 0x7FFFFFFFU)));
}
// Two bytes an element.
template <class Format>
struct Half {
  static constexpr std::size_t kSize = 2 * kCodecBlock;

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
  static void Encode(const float* values, float* residual, std::byte* out) {
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
  static void Decode(const std::byte* in, float* out) {
    for (std::size_t i = 0; i < kHalfBlock; i += hn::Lanes(F32())) {
      const HalfUnit unit = Format::LoadPair(in + 4 * i);
      Put<kOnto>(unit.a, out + i);
      Put<kOnto>(unit.b, out + kHalfBlock + i);
    }
  }

  static HWY_INLINE VF32 Sum(const float* values, const float* residual) {
    return hn::Add(hn::LoadU(F32(), values), hn::LoadU(F32(), residual));
  }
  template <bool kOnto>
  static HWY_INLINE void Put(VF32 v, float* out) {
    if constexpr (kOnto) v = hn::Add(hn::LoadU(F32(), out), v);
    hn::StoreU(v, F32(), out);
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

// A whole number, and the bits whose lowest are its two's complement: what is added leaves a
// float32 no place for fractions, and rounds to nearest even.
struct Rounded {
  VF32 number;
  VU32 bits;
};
HWY_INLINE Rounded ToWhole(VF32 v) {
  const VF32 shift = hn::Set(F32(), 0x1.8p23F);
  const VF32 shifted = hn::Add(v, shift);
  return {hn::Sub(shifted, shift), hn::BitCast(U32(), shifted)};
}

// A scale, then codes of one byte.
struct ByteCodes {
  static constexpr float kLargest = 127;
  static constexpr std::size_t kSize = kCodecBlock;

  static HWY_INLINE void Encode(float* residual, VF32 inverse, VF32 scale, std::byte* out) {
    for (std::size_t i = 0; i < kCodecBlock; i += hn::Lanes(F32())) {
      const VF32 v = hn::LoadU(F32(), residual + i);
      const Rounded code = ToWhole(hn::Mul(v, inverse));
      hn::StoreU(hn::TruncateTo(U8(), code.bits), U8(), reinterpret_cast<std::uint8_t*>(out) + i);
      hn::StoreU(hn::Sub(v, hn::Mul(code.number, scale)), F32(), residual + i);
    }
  }
  template <bool kOnto>
  static HWY_INLINE void Decode(const std::byte* in, VF32 scale, float* out) {
    for (std::size_t i = 0; i < kCodecBlock; i += hn::Lanes(F32())) {
      const auto bytes = hn::LoadU(I8(), reinterpret_cast<const std::int8_t*>(in) + i);
      const VI32 code = hn::PromoteTo(I32(), bytes);
      Half<PairOfFloat16>::Put<kOnto>(hn::Mul(hn::ConvertTo(F32(), code), scale), out + i);
    }
  }
};

// Element i in the lower four bits of byte i, element i + kHalfBlock in the upper four.
struct NibbleCodes {
  static constexpr float kLargest = 7;
  static constexpr std::size_t kSize = kHalfBlock;

  static HWY_INLINE VU32 CodeOf(float* residual, VF32 inverse, VF32 scale) {
    const VF32 v = hn::LoadU(F32(), residual);
    const Rounded code = ToWhole(hn::Mul(v, inverse));
    hn::StoreU(hn::Sub(v, hn::Mul(code.number, scale)), F32(), residual);
    return hn::And(code.bits, hn::Set(U32(), 15));
  }
  static HWY_INLINE void Encode(float* residual, VF32 inverse, VF32 scale, std::byte* out) {
    for (std::size_t i = 0; i < kHalfBlock; i += hn::Lanes(F32())) {
      const VU32 low = CodeOf(residual + i, inverse, scale);
      const VU32 high = CodeOf(residual + kHalfBlock + i, inverse, scale);
      const VU32 pair = hn::Or(low, hn::ShiftLeft<4>(high));
      hn::StoreU(hn::TruncateTo(U8(), pair), U8(), reinterpret_cast<std::uint8_t*>(out) + i);
    }
  }
  template <bool kOnto>
  static HWY_INLINE void Decode(const std::byte* in, VF32 scale, float* out) {
    for (std::size_t i = 0; i < kHalfBlock; i += hn::Lanes(F32())) {
      const auto bytes = hn::LoadU(U8(), reinterpret_cast<const std::uint8_t*>(in) + i);
      const VI32 pair = hn::BitCast(I32(), hn::PromoteTo(U32(), bytes));
      const VI32 low = hn::ShiftRight<28>(hn::ShiftLeft<28>(pair));
      const VI32 high = hn::ShiftRight<28>(hn::ShiftLeft<24>(pair));
      Half<PairOfFloat16>::Put<kOnto>(hn::Mul(hn::ConvertTo(F32(), low), scale), out + i);
      Half<PairOfFloat16>::Put<kOnto>(hn::Mul(hn::ConvertTo(F32(), high), scale),
                                      out + kHalfBlock + i);
    }
  }
};

// The largest float whose product with the largest code is finite.
template <class Codes>
inline constexpr float kScaleMax = std::numeric_limits<float>::max() / (Codes::kLargest + 1) *
                                   ((Codes::kLargest + 1) / Codes::kLargest) * (1 - 0x1p-23F);

template <class Codes>
struct Scaled {
  static constexpr std::size_t kSize = sizeof(float) + Codes::kSize;

  static void Encode(const float* values, float* residual, std::byte* out) {
    VI32 most = hn::Zero(I32());
    for (std::size_t i = 0; i < kCodecBlock; i += hn::Lanes(F32())) {
      const VF32 v = hn::Add(hn::LoadU(F32(), values + i), hn::LoadU(F32(), residual + i));
      hn::StoreU(v, F32(), residual + i);
      most = hn::Max(most, MagnitudeBits(v));
    }
    const std::int32_t bits = hn::GetLane(hn::MaxOfLanes(I32(), most));
    float largest = 0;
    std::memcpy(&largest, &bits, sizeof largest);
    float scale = largest / Codes::kLargest;
    // The quotient may have been rounded up, and the largest code must not overflow.
    if (scale > kScaleMax<Codes>) scale = kScaleMax<Codes>;
    float inverse = Codes::kLargest / largest;
    if (bits >= kInfinityBits) {
      scale = std::numeric_limits<float>::quiet_NaN();
      std::memset(residual, 0, kCodecBlock * sizeof(float));
      inverse = 0;
    } else if (scale < std::numeric_limits<float>::min()) {
      // So small that the scale would lose digits, or be 0: it waits in the residual.
      scale = inverse = 0;
    }
    std::memcpy(out, &scale, sizeof scale);
    if (bits >= kInfinityBits) {
      std::memset(out + sizeof scale, 0, Codes::kSize);
      return;
    }
    Codes::Encode(residual, hn::Set(F32(), inverse), hn::Set(F32(), scale), out + sizeof scale);
  }
  template <bool kOnto>
  static void Decode(const std::byte* in, float* out) {
    float scale = 0;
    std::memcpy(&scale, in, sizeof scale);
    Codes::template Decode<kOnto>(in + sizeof scale, hn::Set(F32(), scale), out);
  }
};

template <class Format>
void EncodeAll(const EncodeCall& call) {
  for (std::uint64_t block = 0; block < call.blocks_count; ++block) {
    Format::Encode(call.values + block * kCodecBlock, call.residual + block * kCodecBlock,
                   call.out + block * Format::kSize);
  }
}

HWY_INLINE void DivideBlock(float* out, float divisor) {
  for (std::size_t i = 0; i < kCodecBlock; i += hn::Lanes(F32())) {
    hn::StoreU(hn::Div(hn::LoadU(F32(), out + i), hn::Set(F32(), divisor)), F32(), out + i);
  }
}

template <class Format>
void DecodeAll(const DecodeCall& call) {
  for (std::uint64_t block = 0; block < call.blocks_count; ++block) {
    float* const out = call.out + block * kCodecBlock;
    const std::size_t offset = call.offset + block * Format::kSize;
    for (std::size_t input = 0; input < call.inputs_count; ++input) {
      if (input == 0 && !call.onto) {
        Format::template Decode<false>(call.inputs[input] + offset, out);
      } else {
        Format::template Decode<true>(call.inputs[input] + offset, out);
      }
    }
    if (call.divisor != 1) DivideBlock(out, call.divisor);
  }
}

void EncodeHere(const EncodeCall& call) {
  switch (call.codec) {
    case Codec::kBFloat16:
      return EncodeAll<Half<PairOfBFloat16>>(call);
    case Codec::kFloat16:
      return EncodeAll<Half<PairOfFloat16>>(call);
    case Codec::kInt8:
      return EncodeAll<Scaled<ByteCodes>>(call);
    case Codec::kInt4:
      return EncodeAll<Scaled<NibbleCodes>>(call);
    case Codec::kNone:
      return;
  }
}

void DecodeHere(const DecodeCall& call) {
  switch (call.codec) {
    case Codec::kBFloat16:
      return DecodeAll<Half<PairOfBFloat16>>(call);
    case Codec::kFloat16:
      return DecodeAll<Half<PairOfFloat16>>(call);
    case Codec::kInt8:
      return DecodeAll<Scaled<ByteCodes>>(call);
    case Codec::kInt4:
      return DecodeAll<Scaled<NibbleCodes>>(call);
    case Codec::kNone:
      return;
  }
}

}  // namespace headrace::transport::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::transport {

HWY_EXPORT(EncodeHere);
HWY_EXPORT(DecodeHere);

void EncodeBlocks(const EncodeCall& call) { HWY_DYNAMIC_DISPATCH(EncodeHere)(call); }
void DecodeBlocks(const DecodeCall& call) { HWY_DYNAMIC_DISPATCH(DecodeHere)(call); }

}  // namespace headrace::transport
#endif
