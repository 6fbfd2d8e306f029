// Codecs that send some elements of each block and leave the others for later. Included from inside
// foreach_target.h, hence the odd guard.
#if defined(HEADRACE_TRANSPORT_CODEC_KEPT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADRACE_TRANSPORT_CODEC_KEPT_INL_H_
#undef HEADRACE_TRANSPORT_CODEC_KEPT_INL_H_
#else
#define HEADRACE_TRANSPORT_CODEC_KEPT_INL_H_
#endif

#include <cmath>
#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "transport/codec/block_kind.h"
#include "transport/codec/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headrace::transport::HWY_NAMESPACE {

template <bool kOnto>
HWY_INLINE void PutOne(float value, float* out) {
  const float sum = kOnto ? *out + value : value;
  *out = std::isnan(sum) ? std::numeric_limits<float>::quiet_NaN() : sum;  // as Put
}

// The largest, as bfloat16: their places in the block, growing, one byte each, and then their
// values. Of equal magnitudes the first counts.
struct Largest {
  static constexpr std::size_t Size(const BlockKind& kind) { return std::size_t{3} * kind.kept; }

  static void Encode(const BlockKind& kind, const float* values, float* residual, std::byte* out) {
    std::int32_t most = AddToResidual(values, residual);
    // All NaN are alike, so that the same ones are kept everywhere.
    if (most > kInfinityBits) most = MakeNaNsPlain(residual);
    const Threshold least = LeastOf(residual, most, kind.kept);
    std::size_t equal_left = kind.kept - least.above_count;
    std::size_t count = 0;
    const VI32 below = hn::Set(I32(), least.bits - 1);
    for (std::size_t begin = 0; begin < kCodecBlock && count < kind.kept;
         begin += hn::Lanes(F32())) {
      const VI32 magnitudes = MagnitudeBits(hn::LoadU(F32(), residual + begin));
      if (hn::AllFalse(I32(), hn::Gt(magnitudes, below))) continue;
      for (std::size_t i = begin; i < begin + hn::Lanes(F32()); ++i) {
        const std::int32_t bits = BitsOf(residual[i]) & 0x7FFFFFFF;
        if (bits < least.bits || (bits == least.bits && equal_left == 0)) continue;
        if (bits == least.bits) --equal_left;
        const std::uint16_t half = BFloat16Of(residual[i]);
        out[count] = static_cast<std::byte>(i);
        std::memcpy(out + kind.kept + 2 * count, &half, sizeof half);
        residual[i] = bits < kInfinityBits ? residual[i] - OfBFloat16(half) : 0;
        ++count;
      }
    }
    if (most >= kInfinityBits) ForgetWhatIsNotFinite(residual);
  }
  template <bool kOnto>
  static void Decode(const BlockKind& kind, const std::byte* in, float* out) {
    if constexpr (!kOnto) std::memset(out, 0, kCodecBlock * sizeof(float));
    for (std::size_t i = 0; i < kind.kept; ++i) {
      std::uint16_t half = 0;
      std::memcpy(&half, in + kind.kept + 2 * i, sizeof half);
      PutOne<kOnto>(OfBFloat16(half), out + static_cast<std::size_t>(in[i]));
    }
  }

 private:
  // Magnitudes of at least `bits` are as many as are kept, or more that are equal to it.
  struct Threshold {
    std::int32_t bits = 0;
    std::size_t above_count = 0;
  };

  static HWY_INLINE std::int32_t BitsOf(float value) {
    std::int32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
  }
  static HWY_INLINE std::size_t CountFrom(const float* values, std::int32_t bits) {
    const VI32 below = hn::Set(I32(), bits - 1);
    std::size_t count = 0;
    for (std::size_t i = 0; i < kCodecBlock; i += hn::Lanes(F32())) {
      const VI32 magnitudes = MagnitudeBits(hn::LoadU(F32(), values + i));
      count += hn::CountTrue(I32(), hn::Gt(magnitudes, below));
    }
    return count;
  }
  // Halves the range of bits; ends early where a number has exactly so many above it.
  static Threshold LeastOf(const float* values, std::int32_t most, std::size_t kept) {
    std::int32_t low = 0;
    std::int32_t high = most;
    std::size_t above_count = 0;
    while (low < high) {
      const std::int32_t middle = low + (high - low) / 2 + 1;
      const std::size_t count = CountFrom(values, middle);
      if (count == kept) return {.bits = middle - 1, .above_count = kept};
      if (count > kept) {
        low = middle;
      } else {
        high = middle - 1;
        above_count = count;
      }
    }
    return {.bits = low, .above_count = above_count};
  }
  // Returns their bits: they are the largest.
  static std::int32_t MakeNaNsPlain(float* residual) {
    const float plain = std::numeric_limits<float>::quiet_NaN();
    for (std::size_t i = 0; i < kCodecBlock; ++i) {
      if (std::isnan(residual[i])) residual[i] = plain;
    }
    return BitsOf(plain);
  }
  static HWY_INLINE std::uint16_t BFloat16Of(float value) {
    const auto bits = static_cast<std::uint32_t>(BitsOf(value));
    const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
    const std::uint32_t sign = bits >> 16 & 0x8000U;
    if (magnitude > 0x7F800000U) return static_cast<std::uint16_t>(sign | 0x7FC0U);
    const std::uint32_t rounded = (magnitude + 0x7FFFU + (magnitude >> 16 & 1U)) >> 16;
    // What is finite stays so.
    const bool overflows = rounded == 0x7F80U && magnitude < 0x7F800000U;
    return static_cast<std::uint16_t>(sign | (overflows ? 0x7F7FU : rounded));
  }
  static HWY_INLINE float OfBFloat16(std::uint16_t half) {
    const std::uint32_t bits = std::uint32_t{half} << 16;
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  // More than are kept.
  static void ForgetWhatIsNotFinite(float* residual) {
    for (std::size_t i = 0; i < kCodecBlock; ++i) {
      if (!std::isfinite(residual[i])) residual[i] = 0;
    }
  }
};

// One of each share of the block, by chance, as float32. All nodes have the same places, so sums of
// encodings are encodings of sums.
struct ByChance {
  static constexpr std::size_t Size(const BlockKind& kind) {
    return sizeof(float) * std::size_t{kind.kept};
  }

  static void Encode(const BlockKind& kind, const float* values, float* residual, std::byte* out) {
    if (AddToResidual(values, residual) >= kInfinityBits) {
      const float nan = std::numeric_limits<float>::quiet_NaN();
      for (std::size_t i = 0; i < kind.kept; ++i) std::memcpy(out + 4 * i, &nan, sizeof nan);
      std::memset(residual, 0, kCodecBlock * sizeof(float));
      return;
    }
    for (std::size_t i = 0; i < kind.kept; ++i) {
      float* const kept = residual + PlaceOf(kind, i);
      std::memcpy(out + 4 * i, kept, sizeof(float));
      *kept = 0;
    }
  }
  template <bool kOnto>
  static void Decode(const BlockKind& kind, const std::byte* in, float* out) {
    if constexpr (!kOnto) std::memset(out, 0, kCodecBlock * sizeof(float));
    for (std::size_t i = 0; i < kind.kept; ++i) {
      float value = 0;
      std::memcpy(&value, in + 4 * i, sizeof value);
      PutOne<kOnto>(value, out + PlaceOf(kind, i));
    }
  }

 private:
  static HWY_INLINE std::size_t PlaceOf(const BlockKind& kind, std::size_t i) {
    const std::size_t begin = i * kCodecBlock / kind.kept;
    const std::size_t end = (i + 1) * kCodecBlock / kind.kept;
    const std::uint64_t chance = ScrambledOf(kind.seed + static_cast<std::uint32_t>(i));
    return begin + static_cast<std::size_t>(chance * (end - begin) >> 32);
  }
};

}  // namespace headrace::transport::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
