// float16 and bfloat16 in memory, and as two vectors of float32. Included by kernels' sources from
// inside foreach_target.h, hence the odd guard.
#if defined(HEADRACE_TRANSPORT_REDUCE_HALF_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADRACE_TRANSPORT_REDUCE_HALF_FORMATS_INL_H_
#undef HEADRACE_TRANSPORT_REDUCE_HALF_FORMATS_INL_H_
#else
#define HEADRACE_TRANSPORT_REDUCE_HALF_FORMATS_INL_H_
#endif

#include "hwy/highway.h"
#include "transport/reduce/kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headrace::transport::HWY_NAMESPACE {

using F32 = hn::ScalableTag<float>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using U16Half = hn::Rebind<std::uint16_t, F32>;  // as many 16-bit lanes as F32 has lanes
using VF32 = hn::Vec<F32>;
using VU32 = hn::Vec<U32>;
using VU16Half = hn::Vec<U16Half>;

// A unit is one vector of memory, widened to two vectors of float32. How the elements spread over
// the two is the format's choice, since lanes never meet.
struct HalfUnit {
  VF32 a;
  VF32 b;
};

// bfloat16 is the upper half of a float32: even elements go to `a`, odd ones to `b`, with a shift
// and a mask and no movement across lanes.
struct BFloat16Format {
  static HWY_INLINE HalfUnit Load(const std::byte* from) {
    const VU32 pairs = hn::LoadU(U32(), reinterpret_cast<const std::uint32_t*>(from));
    return {hn::BitCast(F32(), hn::ShiftLeft<16>(pairs)),
            hn::BitCast(F32(), hn::And(pairs, hn::Set(U32(), 0xFFFF0000U)))};
  }

  // Adds just under half of the last kept place, and one more where that place is odd: ties go to
  // even, and a carry into the exponent is right. NaN is plain by now, so it cannot carry away.
  static HWY_INLINE VU32 Rounded(VF32 v) {
    const VU32 bits = hn::BitCast(U32(), v);
    const VU32 odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(U32(), 1));
    return hn::Add(bits, hn::Add(odd, hn::Set(U32(), 0x7FFF)));
  }

  static HWY_INLINE void Store(HalfUnit unit, std::byte* to) {
    const VU32 even = hn::ShiftRight<16>(Rounded(unit.a));
    const VU32 odd = hn::And(Rounded(unit.b), hn::Set(U32(), 0xFFFF0000U));
    hn::StoreU(hn::Or(even, odd), U32(), reinterpret_cast<std::uint32_t*>(to));
  }
};

// float16: the first half of the elements goes to `a`, the second to `b`. From AVX2 on the
// processor converts; elsewhere Highway's own conversion truncates and knows no infinity, so it is
// written out here with exact integer and float32 steps.
struct Float16Format {
  static constexpr std::size_t kHalfSize = hn::MaxLanes(U16Half()) * sizeof(std::uint16_t);

  static HWY_INLINE HalfUnit Load(const std::byte* from) {
    return {LoadHalf(from), LoadHalf(from + kHalfSize)};
  }
  static HWY_INLINE void Store(HalfUnit unit, std::byte* to) {
    StoreHalf(unit.a, to);
    StoreHalf(unit.b, to + kHalfSize);
  }

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  using F16 = hn::Rebind<hwy::float16_t, F32>;

  static HWY_INLINE VF32 OfBits(VU32 bits) {
    const auto halves = hn::DemoteTo(U16Half(), hn::BitCast(I32(), bits));
    return hn::PromoteTo(F32(), hn::BitCast(F16(), halves));
  }
  static HWY_INLINE VU16Half Bits(VF32 v) { return hn::BitCast(U16Half(), hn::DemoteTo(F16(), v)); }
  static HWY_INLINE VF32 LoadHalf(const std::byte* from) {
    return hn::PromoteTo(F32(), hn::LoadU(F16(), reinterpret_cast<const hwy::float16_t*>(from)));
  }
#else
  static HWY_INLINE VF32 LoadHalf(const std::byte* from) {
    const auto halves = hn::LoadU(U16Half(), reinterpret_cast<const std::uint16_t*>(from));
    return OfBits(hn::PromoteTo(U32(), halves));
  }
  // Converts the lower half of each; the upper is 0.
  static HWY_INLINE VF32 OfBits(VU32 bits) {
    const VU32 magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(U32(), 0x7FFF)));
    // Moves the exponent's bias from 15 to 127; exact, for subnormal halves too.
    const VF32 scaled = hn::Mul(hn::BitCast(F32(), magnitude), hn::Set(F32(), 0x1p112F));
    const VU32 special = hn::Or(magnitude, hn::Set(U32(), 0x7F800000));
    const auto is_special = hn::Gt(hn::BitCast(I32(), magnitude), hn::Set(I32(), 0x0F7FFFFF));
    const VU32 wide =
        hn::IfThenElse(hn::RebindMask(U32(), is_special), special, hn::BitCast(U32(), scaled));
    const VU32 sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(U32(), 0x8000)));
    return hn::BitCast(F32(), hn::Or(wide, sign));
  }

  static HWY_INLINE VU16Half Bits(VF32 v) {
    const VU32 bits = hn::BitCast(U32(), v);
    const VU32 magnitude = hn::And(bits, hn::Set(U32(), 0x7FFFFFFF));
    const auto ordered = hn::BitCast(I32(), magnitude);  // positive, so signed compares will do

    // Normal: change the bias, then round as in BFloat16Format. 65520 and more carry to infinity.
    const VU32 odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(U32(), 1));
    const VU32 rebias = hn::Set(U32(), 0xC8000000U + 0xFFFU);  // (15 - 127) << 23
    const VU32 normal = hn::ShiftRight<13>(hn::Add(magnitude, hn::Add(odd, rebias)));
    // Subnormal: adding 0.5 shifts the half's last place to float32's last place, and the addition
    // itself rounds to nearest even.
    const VF32 half = hn::Set(F32(), 0.5F);
    const VU32 subnormal = hn::Sub(hn::BitCast(U32(), hn::Add(hn::BitCast(F32(), magnitude), half)),
                                   hn::BitCast(U32(), half));
    const auto is_subnormal = hn::Lt(ordered, hn::Set(I32(), 0x38800000));  // below 2^-14
    const auto is_large = hn::Gt(ordered, hn::Set(I32(), 0x477FFFFF));      // 65536 and above
    const auto is_nan = hn::Gt(ordered, hn::Set(I32(), 0x7F800000));
    const VU32 large = hn::IfThenElse(hn::RebindMask(U32(), is_nan), hn::Set(U32(), 0x7E00),
                                      hn::Set(U32(), 0x7C00));
    VU32 narrow = hn::IfThenElse(hn::RebindMask(U32(), is_subnormal), subnormal, normal);
    narrow = hn::IfThenElse(hn::RebindMask(U32(), is_large), large, narrow);
    const VU32 sign = hn::ShiftRight<16>(hn::And(bits, hn::Set(U32(), 0x80000000U)));
    return hn::DemoteTo(U16Half(), hn::BitCast(I32(), hn::Or(narrow, sign)));
  }

#endif

  static HWY_INLINE void StoreHalf(VF32 v, std::byte* to) {
    hn::StoreU(Bits(v), U16Half(), reinterpret_cast<std::uint16_t*>(to));
  }
};

}  // namespace headrace::transport::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
