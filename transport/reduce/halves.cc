// float16 and bfloat16: widened to float32, accumulated there, rounded once to nearest even.
#include "ipc/base/check.h"
#include "transport/reduce/call.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "transport/reduce/halves.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which re-includes this file.
#include "hwy/highway.h"
#include "transport/reduce/half_formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headrace::transport::HWY_NAMESPACE {

template <class Format>
struct HalfElement {
  using Unit = HalfUnit;
  static constexpr std::size_t kUnitSize = hn::MaxLanes(F32()) * sizeof(float);

  static HWY_INLINE Unit Load(const std::byte* from) { return Format::Load(from); }
  static HWY_INLINE void Store(Unit unit, std::byte* to) { Format::Store(unit, to); }
  template <class Operation>
  static HWY_INLINE Unit Combine(Unit accumulator, Unit next) {
    return {Operation::Combine(F32(), accumulator.a, next.a),
            Operation::Combine(F32(), accumulator.b, next.b)};
  }
  template <class Operation>
  static HWY_INLINE Unit Finish(Unit accumulator, std::size_t divisor) {
    return {PlainNaN(F32(), Operation::Finish(F32(), accumulator.a, divisor)),
            PlainNaN(F32(), Operation::Finish(F32(), accumulator.b, divisor))};
  }
};

void ReduceHalvesHere(const ReduceCall& call) {
  if (call.dtype == DType::kFloat16) return ReduceFloating<HalfElement<Float16Format>>(call);
  ReduceFloating<HalfElement<BFloat16Format>>(call);
}

}  // namespace headrace::transport::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::transport {

HWY_EXPORT(ReduceHalvesHere);

void ReduceHalves(const ReduceCall& call) {
  HR_CHECK(call.dtype == DType::kFloat16 || call.dtype == DType::kBFloat16,
           static_cast<int>(call.dtype));
  HWY_DYNAMIC_DISPATCH(ReduceHalvesHere)(call);
}

}  // namespace headrace::transport
#endif
