// float32 and float64.
#include "ipc/base/check.h"
#include "transport/reduce/call.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "transport/reduce/floats.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which re-includes this file.
#include "hwy/highway.h"
#include "transport/reduce/kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headrace::transport::HWY_NAMESPACE {

template <class T>
struct FloatElement : VectorElement<T> {
  using typename VectorElement<T>::D;
  using typename VectorElement<T>::Unit;

  template <class Operation>
  static HWY_INLINE Unit Finish(Unit accumulator, std::size_t divisor) {
    return PlainNaN(D(), Operation::Finish(D(), accumulator, divisor));
  }
};

void ReduceFloatsHere(const ReduceCall& call) {
  if (call.dtype == DType::kFloat32) return ReduceFloating<FloatElement<float>>(call);
  ReduceFloating<FloatElement<double>>(call);
}

}  // namespace headrace::transport::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::transport {

HWY_EXPORT(ReduceFloatsHere);

void ReduceFloats(const ReduceCall& call) {
  HR_CHECK(call.dtype == DType::kFloat32 || call.dtype == DType::kFloat64,
           static_cast<int>(call.dtype));
  HWY_DYNAMIC_DISPATCH(ReduceFloatsHere)(call);
}

}  // namespace headrace::transport
#endif
