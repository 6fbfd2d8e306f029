// int32, int64 and uint8, except averages. Sums and products wrap, which is the same for signed and
// unsigned numbers, so they run on unsigned lanes where wrapping is defined.
#include <type_traits>

#include "ipc/base/check.h"
#include "transport/reduce/call.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "transport/reduce/integers.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which re-includes this file.
#include "hwy/highway.h"
#include "transport/reduce/kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headrace::transport::HWY_NAMESPACE {

// No target multiplies bytes: the even and the odd ones are multiplied as 16-bit lanes.
struct ByteProduct : Sum {
  template <class D, class V>
  static HWY_INLINE V Combine(D d, V product, V next) {
#if HWY_TARGET == HWY_SCALAR  // has vectors of one byte, too small for a wider lane
    return hn::Set(d, static_cast<std::uint8_t>(hn::GetLane(product) * hn::GetLane(next)));
#else
    const hn::RepartitionToWide<D> wide;
    const auto low = hn::Set(wide, 0x00FF);
    const auto a = hn::BitCast(wide, product);
    const auto b = hn::BitCast(wide, next);
    const auto even = hn::And(hn::Mul(a, b), low);
    const auto odd = hn::ShiftLeft<8>(hn::Mul(hn::ShiftRight<8>(a), hn::ShiftRight<8>(b)));
    return hn::BitCast(d, hn::Or(even, odd));
#endif
  }
};

template <class T>
void ReduceInteger(const ReduceCall& call) {
  using Ordered = VectorElement<T>;
  using Wrapping = VectorElement<std::make_unsigned_t<T>>;
  using Multiply = std::conditional_t<sizeof(T) == 1, ByteProduct, Product>;
  switch (call.reduction) {
    case Reduction::kSum:
      return ReduceRange<Wrapping, Sum>(call);
    case Reduction::kMin:
      return ReduceRange<Ordered, IntegerMin>(call);
    case Reduction::kMax:
      return ReduceRange<Ordered, IntegerMax>(call);
    case Reduction::kProduct:
      return ReduceRange<Wrapping, Multiply>(call);
    case Reduction::kAverage:
      HWY_ABORT("averages of integers are ReduceIntegerAverages'");
  }
}

void ReduceIntegersHere(const ReduceCall& call) {
  if (call.dtype == DType::kInt32) return ReduceInteger<std::int32_t>(call);
  if (call.dtype == DType::kInt64) return ReduceInteger<std::int64_t>(call);
  ReduceInteger<std::uint8_t>(call);
}

}  // namespace headrace::transport::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::transport {

HWY_EXPORT(ReduceIntegersHere);

void ReduceIntegers(const ReduceCall& call) {
  HR_CHECK(
      call.dtype == DType::kInt32 || call.dtype == DType::kInt64 || call.dtype == DType::kUInt8,
      static_cast<int>(call.dtype));
  HR_CHECK(call.reduction != Reduction::kAverage, call.inputs_count);
  HWY_DYNAMIC_DISPATCH(ReduceIntegersHere)(call);
}

}  // namespace headrace::transport
#endif
