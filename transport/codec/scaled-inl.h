// Codecs with a scale for each block: whole numbers, eight-bit floats, signs. Included from inside
// foreach_target.h, hence the odd guard.
#if defined(HEADRACE_TRANSPORT_CODEC_SCALED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADRACE_TRANSPORT_CODEC_SCALED_INL_H_
#undef HEADRACE_TRANSPORT_CODEC_SCALED_INL_H_
#else
#define HEADRACE_TRANSPORT_CODEC_SCALED_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "transport/codec/block_kind.h"
#include "transport/codec/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headrace::transport::HWY_NAMESPACE {

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

// To nearest, or up or down by chance, so that the average is right. Of elements i and
// i + kHalfBlock, for which one number of 32 bits is chance enough.
template <bool kByChance>
struct Rounding {
  static HWY_INLINE Rounded Low(VF32 v, VU32 chance) {
    return Moved(v, hn::And(chance, hn::Set(U32(), 0xFFFF)));
  }
  static HWY_INLINE Rounded High(VF32 v, VU32 chance) {
    return Moved(v, hn::ShiftRight<16>(chance));
  }
  static HWY_INLINE VU32 Chance(std::uint32_t seed, std::size_t i) {
    if constexpr (!kByChance) return hn::Zero(U32());
    return Scrambled(hn::Add(hn::Iota(U32(), static_cast<std::uint32_t>(i)), hn::Set(U32(), seed)));
  }

 private:
  // By less than half a step, so that what is in bounds remains so.
  static HWY_INLINE Rounded Moved(VF32 v, VU32 chance) {
    if constexpr (!kByChance) return ToWhole(v);
    const VF32 share = hn::ConvertTo(F32(), hn::BitCast(I32(), chance));
    const VF32 by =
        hn::Add(hn::Mul(share, hn::Set(F32(), 0x1p-16F)), hn::Set(F32(), 0x1p-17F - 0.5F));
    return ToWhole(hn::Add(v, by));
  }
};

// Codes of one byte.
template <bool kByChance>
struct ByteCodes {
  static constexpr float kLargest = 127;
  static constexpr std::size_t kSize = kCodecBlock;

  static HWY_INLINE void Keep(Rounded code, VF32 v, VF32 scale, std::byte* out, float* residual) {
    StoreBytes(code.bits, out);
    hn::StoreU(hn::Sub(v, hn::Mul(code.number, scale)), F32(), residual);
  }
  static HWY_INLINE void Encode(float* residual, VF32 inverse, VF32 scale, std::uint32_t seed,
                                std::byte* out) {
    using R = Rounding<kByChance>;
    for (std::size_t i = 0; i < kHalfBlock; i += hn::Lanes(F32())) {
      const VU32 chance = R::Chance(seed, i);
      const VF32 low = hn::LoadU(F32(), residual + i);
      const VF32 high = hn::LoadU(F32(), residual + kHalfBlock + i);
      Keep(R::Low(hn::Mul(low, inverse), chance), low, scale, out + i, residual + i);
      Keep(R::High(hn::Mul(high, inverse), chance), high, scale, out + kHalfBlock + i,
           residual + kHalfBlock + i);
    }
  }
  template <bool kOnto>
  static HWY_INLINE void Decode(const std::byte* in, VF32 scale, float* out) {
    for (std::size_t i = 0; i < kCodecBlock; i += hn::Lanes(F32())) {
      const auto bytes = hn::LoadU(I8(), reinterpret_cast<const std::int8_t*>(in) + i);
      const VI32 code = hn::PromoteTo(I32(), bytes);
      Put<kOnto>(hn::Mul(hn::ConvertTo(F32(), code), scale), out + i);
    }
  }
};

// Element i in the lower four bits of byte i, element i + kHalfBlock in the upper four.
template <bool kByChance>
struct NibbleCodes {
  static constexpr float kLargest = 7;
  static constexpr std::size_t kSize = kHalfBlock;

  static HWY_INLINE VU32 Kept(Rounded code, VF32 v, VF32 scale, float* residual) {
    hn::StoreU(hn::Sub(v, hn::Mul(code.number, scale)), F32(), residual);
    return hn::And(code.bits, hn::Set(U32(), 15));
  }
  static HWY_INLINE void Encode(float* residual, VF32 inverse, VF32 scale, std::uint32_t seed,
                                std::byte* out) {
    using R = Rounding<kByChance>;
    for (std::size_t i = 0; i < kHalfBlock; i += hn::Lanes(F32())) {
      const VU32 chance = R::Chance(seed, i);
      const VF32 low = hn::LoadU(F32(), residual + i);
      const VF32 high = hn::LoadU(F32(), residual + kHalfBlock + i);
      const VU32 low_code = Kept(R::Low(hn::Mul(low, inverse), chance), low, scale, residual + i);
      const VU32 high_code =
          Kept(R::High(hn::Mul(high, inverse), chance), high, scale, residual + kHalfBlock + i);
      StoreBytes(hn::Or(low_code, hn::ShiftLeft<4>(high_code)), out + i);
    }
  }
  template <bool kOnto>
  static HWY_INLINE void Decode(const std::byte* in, VF32 scale, float* out) {
    for (std::size_t i = 0; i < kHalfBlock; i += hn::Lanes(F32())) {
      const VI32 pair = hn::BitCast(I32(), LoadBytes(in + i));
      const VI32 low = hn::ShiftRight<28>(hn::ShiftLeft<28>(pair));
      const VI32 high = hn::ShiftRight<28>(hn::ShiftLeft<24>(pair));
      Put<kOnto>(hn::Mul(hn::ConvertTo(F32(), low), scale), out + i);
      Put<kOnto>(hn::Mul(hn::ConvertTo(F32(), high), scale), out + kHalfBlock + i);
    }
  }
};

// Floats of eight bits: a sign, an exponent, kDigits bits of a fraction. Where the format has
// infinities and NaN there are none here: the block's scale says so.
template <int kDigits, int kBias>
struct Float8 {
  static constexpr int kShift = 23 - kDigits;
  static constexpr std::uint32_t kBiases = std::uint32_t{127 - kBias} << 23;

  // For finite values up to the format's largest. As in Float16Format: the exponent's bias
  // is changed and the fraction rounded to nearest even; below the normal numbers an addition
  // shifts the last place to float32's own.
  static HWY_INLINE VU32 Bits(VF32 v) {
    const VU32 bits = hn::BitCast(U32(), v);
    const VU32 magnitude = hn::And(bits, hn::Set(U32(), 0x7FFFFFFFU));
    const VU32 odd = hn::And(hn::ShiftRight<kShift>(magnitude), hn::Set(U32(), 1));
    const VU32 rebias = hn::Set(U32(), (1U << (kShift - 1)) - 1U - kBiases);
    const VU32 normal = hn::ShiftRight<kShift>(hn::Add(magnitude, hn::Add(odd, rebias)));
    const VU32 unit = hn::Set(U32(), std::uint32_t{127 + 23 + 1 - kBias - kDigits} << 23);
    const VF32 shifted = hn::Add(hn::BitCast(F32(), magnitude), hn::BitCast(F32(), unit));
    const VU32 subnormal = hn::Sub(hn::BitCast(U32(), shifted), unit);
    const auto is_subnormal =
        hn::Lt(hn::BitCast(I32(), magnitude),
               hn::Set(I32(), static_cast<std::int32_t>(kBiases + (1U << 23))));
    const VU32 code = hn::IfThenElse(hn::RebindMask(U32(), is_subnormal), subnormal, normal);
    return hn::Or(code, hn::And(hn::ShiftRight<24>(bits), hn::Set(U32(), 0x80)));
  }
  static HWY_INLINE VF32 OfBits(VU32 bits) {
    const VU32 magnitude = hn::And(bits, hn::Set(U32(), 0x7F));
    const VU32 normal = hn::Add(hn::ShiftLeft<kShift>(magnitude), hn::Set(U32(), kBiases));
    const VU32 last = hn::Set(U32(), std::uint32_t{127 + 1 - kBias - kDigits} << 23);
    const VF32 subnormal =
        hn::Mul(hn::ConvertTo(F32(), hn::BitCast(I32(), magnitude)), hn::BitCast(F32(), last));
    const auto is_subnormal =
        hn::Lt(hn::BitCast(I32(), magnitude), hn::Set(I32(), std::int32_t{1} << kDigits));
    const VU32 sign = hn::ShiftLeft<24>(hn::And(bits, hn::Set(U32(), 0x80)));
    const VF32 value =
        hn::IfThenElse(hn::RebindMask(F32(), is_subnormal), subnormal, hn::BitCast(F32(), normal));
    return hn::BitCast(F32(), hn::Or(hn::BitCast(U32(), value), sign));
  }
};
struct Float8E4M3 : Float8<3, 7> {
  static constexpr float kLargest = 448;
};
struct Float8E5M2 : Float8<2, 15> {
  static constexpr float kLargest = 57344;
};

template <class Format>
struct Float8Codes {
  static constexpr float kLargest = Format::kLargest;
  static constexpr std::size_t kSize = kCodecBlock;

  static HWY_INLINE void Encode(float* residual, VF32 inverse, VF32 scale, std::uint32_t /*seed*/,
                                std::byte* out) {
    const VF32 most = hn::Set(F32(), kLargest);
    for (std::size_t i = 0; i < kCodecBlock; i += hn::Lanes(F32())) {
      const VF32 v = hn::LoadU(F32(), residual + i);
      const VF32 scaled = hn::Min(hn::Max(hn::Mul(v, inverse), hn::Neg(most)), most);
      const VU32 code = Format::Bits(scaled);
      StoreBytes(code, out + i);
      hn::StoreU(hn::Sub(v, hn::Mul(Format::OfBits(code), scale)), F32(), residual + i);
    }
  }
  template <bool kOnto>
  static HWY_INLINE void Decode(const std::byte* in, VF32 scale, float* out) {
    for (std::size_t i = 0; i < kCodecBlock; i += hn::Lanes(F32())) {
      Put<kOnto>(hn::Mul(Format::OfBits(LoadBytes(in + i)), scale), out + i);
    }
  }
};

// The largest float whose product with the largest code is finite, or just below it: the quotient
// and the product are each rounded.
template <class Codes>
inline constexpr float kScaleMax = std::numeric_limits<float>::max() / Codes::kLargest*(1 -
                                                                                        0x1p-22F);

// Not finite: nobody is to take what overflowed for a gradient.
HWY_INLINE void EncodeNaN(float* residual, std::byte* out, std::size_t size) {
  const float scale = std::numeric_limits<float>::quiet_NaN();
  std::memset(residual, 0, kCodecBlock * sizeof(float));
  std::memset(out, 0, size);
  std::memcpy(out, &scale, sizeof scale);
}

template <class Codes>
struct Scaled {
  static constexpr std::size_t Size(const BlockKind& /*kind*/) {
    return sizeof(float) + Codes::kSize;
  }

  static void Encode(const BlockKind& kind, const float* values, float* residual, std::byte* out) {
    const std::int32_t bits = AddToResidual(values, residual);
    if (bits >= kInfinityBits) return EncodeNaN(residual, out, Size(kind));
    float largest = 0;
    std::memcpy(&largest, &bits, sizeof largest);
    // The quotient may have been rounded up, and the largest code must not overflow.
    float scale = std::min(largest / Codes::kLargest, kScaleMax<Codes>);
    float inverse = Codes::kLargest / largest;
    // Rounded up, it takes the largest value beyond the largest code, and chance, which moves it by
    // just less than half a step, to the code behind that, which has the other sign.
    if (largest * inverse > Codes::kLargest) inverse = std::nextafter(inverse, 0.0F);
    // So small that the scale would lose digits, or be 0: it waits in the residual.
    if (scale < std::numeric_limits<float>::min()) scale = inverse = 0;
    std::memcpy(out, &scale, sizeof scale);
    Codes::Encode(residual, hn::Set(F32(), inverse), hn::Set(F32(), scale), kind.seed,
                  out + sizeof scale);
  }
  template <bool kOnto>
  static void Decode(const BlockKind& /*kind*/, const std::byte* in, float* out) {
    float scale = 0;
    std::memcpy(&scale, in, sizeof scale);
    Codes::template Decode<kOnto>(in + sizeof scale, hn::Set(F32(), scale), out);
  }
};

// One bit an element, and the mean magnitude. Bit b of byte j is 1 where element 32 b + j is
// negative.
struct Signs {
  static constexpr std::size_t kBytes = kCodecBlock / 8;
  static constexpr std::size_t Size(const BlockKind& /*kind*/) { return sizeof(float) + kBytes; }

  static void Encode(const BlockKind& kind, const float* values, float* residual, std::byte* out) {
    if (AddToResidual(values, residual) >= kInfinityBits) {
      return EncodeNaN(residual, out, Size(kind));
    }
    float scale = MeanMagnitude(residual, kind.count);
    if (scale < std::numeric_limits<float>::min()) scale = 0;
    std::memcpy(out, &scale, sizeof scale);
    const VF32 value = hn::Set(F32(), scale);
    for (std::size_t j = 0; j < kBytes; j += hn::Lanes(F32())) {
      VU32 byte = hn::Zero(U32());
      for (std::size_t i = j + kCodecBlock; i >= j + kBytes; i -= kBytes) {
        float* const at = residual + i - kBytes;
        const VF32 v = hn::LoadU(F32(), at);
        byte = hn::Or(hn::ShiftLeft<1>(byte), hn::ShiftRight<31>(hn::BitCast(U32(), v)));
        hn::StoreU(hn::Sub(v, hn::CopySign(value, v)), F32(), at);
      }
      StoreBytes(byte, out + sizeof scale + j);
    }
  }
  template <bool kOnto>
  static void Decode(const BlockKind& /*kind*/, const std::byte* in, float* out) {
    std::uint32_t scale = 0;
    std::memcpy(&scale, in, sizeof scale);
    for (std::size_t j = 0; j < kBytes; j += hn::Lanes(F32())) {
      VU32 byte = LoadBytes(in + sizeof scale + j);
      for (std::size_t i = j; i < kCodecBlock; i += kBytes) {
        const VU32 bits = hn::Xor(hn::ShiftLeft<31>(byte), hn::Set(U32(), scale));
        Put<kOnto>(hn::BitCast(F32(), bits), out + i);
        byte = hn::ShiftRight<1>(byte);
      }
    }
  }

 private:
  // Added up in one order, whatever the vector's size: sixteen sums, and then those. Divided first,
  // so that nothing overflows.
  static HWY_INLINE float MeanMagnitude(const float* values, std::size_t count) {
    constexpr std::size_t kSums = 16;
    HWY_ALIGN float sums[kSums];
    const VF32 share = hn::Set(F32(), 1.0F / kCodecBlock);
    for (std::size_t j = 0; j < kSums; j += hn::Lanes(F32())) {
      VF32 sum = hn::Zero(F32());
      for (std::size_t i = j; i < kCodecBlock; i += kSums) {
        sum = hn::Add(sum, hn::Mul(hn::Abs(hn::LoadU(F32(), values + i)), share));
      }
      hn::StoreU(sum, F32(), sums + j);
    }
    float mean = 0;
    for (const float sum : sums) mean += sum;
    mean *= static_cast<float>(kCodecBlock) / static_cast<float>(count);
    return std::min(mean, std::numeric_limits<float>::max());
  }
};

}  // namespace headrace::transport::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
