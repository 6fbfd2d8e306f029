// What the kernels of all codecs share. Included from inside foreach_target.h, hence the odd guard.
#if defined(HEADRACE_TRANSPORT_CODEC_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADRACE_TRANSPORT_CODEC_LANES_INL_H_
#undef HEADRACE_TRANSPORT_CODEC_LANES_INL_H_
#else
#define HEADRACE_TRANSPORT_CODEC_LANES_INL_H_
#endif

#include "hwy/highway.h"
#include "transport/codec/block_size.h"
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

// Widens one byte to each lane.
HWY_INLINE VU32 LoadBytes(const std::byte* from) {
  return hn::PromoteTo(U32(), hn::LoadU(U8(), reinterpret_cast<const std::uint8_t*>(from)));
}
// The lowest byte of each lane.
HWY_INLINE void StoreBytes(VU32 v, std::byte* to) {
  hn::StoreU(hn::TruncateTo(U8(), v), U8(), reinterpret_cast<std::uint8_t*>(to));
}

// Processors differ in the NaN that they make of two infinities, and GPUs in all: here it is one.
template <bool kOnto>
HWY_INLINE void Put(VF32 v, float* out) {
  if constexpr (kOnto) v = hn::Add(hn::LoadU(F32(), out), v);
  hn::StoreU(PlainNaN(F32(), v), F32(), out);
}

// The block's elements plus what was left of them before, into `residual`. Returns the bits of the
// largest magnitude, which are not below kInfinityBits where something is not finite.
HWY_INLINE std::int32_t AddToResidual(const float* values, float* residual) {
  VI32 most = hn::Zero(I32());
  for (std::size_t i = 0; i < kCodecBlock; i += hn::Lanes(F32())) {
    const VF32 v = hn::Add(hn::LoadU(F32(), values + i), hn::LoadU(F32(), residual + i));
    hn::StoreU(v, F32(), residual + i);
    most = hn::Max(most, MagnitudeBits(v));
  }
  return hn::GetLane(hn::MaxOfLanes(I32(), most));
}

// 32 bits for each element that look like chance, and depend on nothing but seed and number.
HWY_INLINE VU32 Scrambled(VU32 v) {
  v = hn::Mul(hn::Xor(v, hn::ShiftRight<16>(v)), hn::Set(U32(), 0x7FEB352DU));
  v = hn::Mul(hn::Xor(v, hn::ShiftRight<15>(v)), hn::Set(U32(), 0x846CA68BU));
  return hn::Xor(v, hn::ShiftRight<16>(v));
}

}  // namespace headrace::transport::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
