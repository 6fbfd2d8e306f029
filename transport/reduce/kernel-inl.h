// The reduction loop, compiled once for every SIMD target. A kernel is put together from
//  - an Element: how a "unit" (about one vector's worth of memory) is loaded, stored and combined;
//  - an Operation: how two units become one, and what happens to the last accumulator.
// Included by the kernels' sources from inside foreach_target.h, hence the odd guard.
#if defined(HEADRACE_TRANSPORT_REDUCE_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADRACE_TRANSPORT_REDUCE_KERNEL_INL_H_
#undef HEADRACE_TRANSPORT_REDUCE_KERNEL_INL_H_
#else
#define HEADRACE_TRANSPORT_REDUCE_KERNEL_INL_H_
#endif

#include <algorithm>
#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "transport/reduce/call.h"

HWY_BEFORE_NAMESPACE();
namespace headrace::transport::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Elements whose unit is one vector.
template <class T>
struct VectorElement {
  using D = hn::ScalableTag<T>;
  using Unit = hn::Vec<D>;
  static constexpr std::size_t kUnitSize = hn::MaxLanes(D()) * sizeof(T);

  static HWY_INLINE Unit Load(const std::byte* from) {
    return hn::LoadU(D(), reinterpret_cast<const T*>(from));
  }
  static HWY_INLINE void Store(Unit unit, std::byte* to) {
    hn::StoreU(unit, D(), reinterpret_cast<T*>(to));
  }
  template <class Operation>
  static HWY_INLINE Unit Combine(Unit accumulator, Unit next) {
    return Operation::Combine(D(), accumulator, next);
  }
  template <class Operation>
  static HWY_INLINE Unit Finish(Unit accumulator, std::size_t divisor) {
    return Operation::Finish(D(), accumulator, divisor);
  }
};

// Reduces one unit at byte `i`. Rank order is the order of the loop. Not inlined: it runs a few
// times at the end of a range, and sanitizers take minutes over the code as it is.
template <class Element, class Operation>
HWY_NOINLINE void ReduceUnit(const std::byte* const* in, std::size_t inputs_count,
                             std::byte* const* out, std::size_t outputs_count, std::size_t divisor,
                             std::size_t i) {
  auto unit = Element::Load(in[0] + i);
  for (std::size_t m = 1; m < inputs_count; ++m) {
    unit = Element::template Combine<Operation>(unit, Element::Load(in[m] + i));
  }
  unit = Element::template Finish<Operation>(unit, divisor);
  for (std::size_t m = 0; m < outputs_count; ++m) Element::Store(unit, out[m] + i);
}

// The same for kUnroll units at a time: enough loads in flight to hide their latency, and, with two
// vectors to a unit of halves, still no more than half of AVX2's sixteen registers. Variables with
// names, because an array of vectors would live on the stack.
inline constexpr std::size_t kUnroll = 4;

template <class Element, class Operation>
HWY_INLINE void ReduceBlock(const std::byte* const* in, std::size_t inputs_count,
                            std::byte* const* out, std::size_t outputs_count, std::size_t divisor,
                            std::size_t i) {
  constexpr std::size_t kSize = Element::kUnitSize;
  const std::byte* from = in[0] + i;
  auto unit0 = Element::Load(from);
  auto unit1 = Element::Load(from + kSize);
  auto unit2 = Element::Load(from + 2 * kSize);
  auto unit3 = Element::Load(from + 3 * kSize);
  for (std::size_t m = 1; m < inputs_count; ++m) {
    from = in[m] + i;
    unit0 = Element::template Combine<Operation>(unit0, Element::Load(from));
    unit1 = Element::template Combine<Operation>(unit1, Element::Load(from + kSize));
    unit2 = Element::template Combine<Operation>(unit2, Element::Load(from + 2 * kSize));
    unit3 = Element::template Combine<Operation>(unit3, Element::Load(from + 3 * kSize));
  }
  unit0 = Element::template Finish<Operation>(unit0, divisor);
  unit1 = Element::template Finish<Operation>(unit1, divisor);
  unit2 = Element::template Finish<Operation>(unit2, divisor);
  unit3 = Element::template Finish<Operation>(unit3, divisor);
  for (std::size_t m = 0; m < outputs_count; ++m) {
    std::byte* to = out[m] + i;
    Element::Store(unit0, to);
    Element::Store(unit1, to + kSize);
    Element::Store(unit2, to + 2 * kSize);
    Element::Store(unit3, to + 3 * kSize);
  }
}

// The last `size` bytes, less than a unit, go through a unit of zeros: the same instructions give
// the same bits, and nothing beyond the range is read or written.
template <class Element, class Operation>
HWY_NOINLINE void ReduceTail(const std::byte* const* in, std::size_t inputs_count,
                             std::byte* const* out, std::size_t outputs_count, std::size_t divisor,
                             std::size_t i, std::size_t size) {
  std::byte padded[kMembersMax][Element::kUnitSize];
  const std::byte* padded_in[kMembersMax] = {};
  for (std::size_t member = 0; member < inputs_count; ++member) {
    std::memset(padded[member], 0, Element::kUnitSize);
    std::memcpy(padded[member], in[member] + i, size);
    padded_in[member] = padded[member];
  }
  std::byte* const result = padded[0];
  ReduceUnit<Element, Operation>(padded_in, inputs_count, &result, 1, divisor, 0);
  for (std::size_t member = 0; member < outputs_count; ++member) {
    std::memcpy(out[member] + i, result, size);
  }
}

// Two or four members whose results replace their inputs, which is what gradients mostly are: the
// pointers stay in registers, which makes this loop as fast as one written for nothing else.
// Returns where it stopped, less than a unit before the end.
template <class Element, class Operation, std::size_t kMembers>
HWY_NOINLINE std::size_t ReduceInPlace(const ReduceCall& call) {
  static_assert(kMembers == 2 || kMembers == 4);
  std::byte* const m0 = call.outputs[0];
  std::byte* const m1 = call.outputs[1];
  std::byte* const m2 = kMembers == 4 ? call.outputs[2] : nullptr;
  std::byte* const m3 = kMembers == 4 ? call.outputs[3] : nullptr;
  const std::size_t divisor = call.divisor;
  const std::size_t end = call.offset + call.size;
  std::size_t i = call.offset;
  for (; i + Element::kUnitSize <= end; i += Element::kUnitSize) {
    auto unit = Element::template Combine<Operation>(Element::Load(m0 + i), Element::Load(m1 + i));
    if constexpr (kMembers == 4) {
      unit = Element::template Combine<Operation>(unit, Element::Load(m2 + i));
      unit = Element::template Combine<Operation>(unit, Element::Load(m3 + i));
    }
    unit = Element::template Finish<Operation>(unit, divisor);
    Element::Store(unit, m0 + i);
    Element::Store(unit, m1 + i);
    if constexpr (kMembers == 4) {
      Element::Store(unit, m2 + i);
      Element::Store(unit, m3 + i);
    }
  }
  return i;
}

// Any number of members from byte `i` on. The pointers stay in the caller's arrays: copied to
// arrays here, with the offset added, they made this loop up to 2.4 times slower on a Zen 3, which
// goes on expecting the stores of the copies to be forwarded to the loop's loads of them.
template <class Element, class Operation>
HWY_NOINLINE void ReduceFrom(const ReduceCall& call, std::size_t i) {
  const std::byte* const* in = call.inputs;
  std::byte* const* out = call.outputs;
  const std::size_t inputs_count = call.inputs_count;
  const std::size_t outputs_count = call.outputs_count;
  const std::size_t divisor = call.divisor;
  constexpr std::size_t kBlockSize = kUnroll * Element::kUnitSize;
  const std::size_t end = call.offset + call.size;
  for (; i + kBlockSize <= end; i += kBlockSize) {
    ReduceBlock<Element, Operation>(in, inputs_count, out, outputs_count, divisor, i);
  }
  for (; i + Element::kUnitSize <= end; i += Element::kUnitSize) {
    ReduceUnit<Element, Operation>(in, inputs_count, out, outputs_count, divisor, i);
  }
  if (i < end)
    ReduceTail<Element, Operation>(in, inputs_count, out, outputs_count, divisor, i, end - i);
}

template <class Element, class Operation>
void ReduceRange(const ReduceCall& call) {
  ReduceFrom<Element, Operation>(call, call.offset);
}

// With the in-place loops, for the operations that gradients need.
template <class Element, class Operation>
void ReduceGradients(const ReduceCall& call) {
  const bool in_place = call.inputs_count == call.outputs_count &&
                        std::equal(call.inputs, call.inputs + call.inputs_count, call.outputs);
  std::size_t i = call.offset;
  if (in_place && call.inputs_count == 2) i = ReduceInPlace<Element, Operation, 2>(call);
  if (in_place && call.inputs_count == 4) i = ReduceInPlace<Element, Operation, 4>(call);
  if (i < call.offset + call.size) ReduceFrom<Element, Operation>(call, i);
}

struct Sum {
  template <class D, class V>
  static HWY_INLINE V Combine(D, V sum, V next) {
    return hn::Add(sum, next);
  }
  template <class D, class V>
  static HWY_INLINE V Finish(D, V sum, std::size_t) {
    return sum;
  }
};

// Divides, rather than multiplies by the inverse, so that the quotient is rounded correctly.
struct Average : Sum {
  template <class D, class V>
  static HWY_INLINE V Finish(D d, V sum, std::size_t divisor) {
    return hn::Div(sum, hn::Set(d, static_cast<hn::TFromD<D>>(divisor)));
  }
};

struct Product : Sum {
  template <class D, class V>
  static HWY_INLINE V Combine(D, V product, V next) {
    return hn::Mul(product, next);
  }
};

// Written out with comparisons, because the targets' own minimum and maximum differ on NaN and on
// zeros of both signs: `next` wins when it is strictly better or NaN, and no number beats a NaN.
struct FloatMin : Sum {
  template <class D, class V>
  static HWY_INLINE V Combine(D, V least, V next) {
    return hn::IfThenElse(hn::Or(hn::Lt(next, least), hn::IsNaN(next)), next, least);
  }
};

struct FloatMax : Sum {
  template <class D, class V>
  static HWY_INLINE V Combine(D, V most, V next) {
    return hn::IfThenElse(hn::Or(hn::Gt(next, most), hn::IsNaN(next)), next, most);
  }
};

struct IntegerMin : Sum {
  template <class D, class V>
  static HWY_INLINE V Combine(D, V least, V next) {
    return hn::Min(least, next);
  }
};

struct IntegerMax : Sum {
  template <class D, class V>
  static HWY_INLINE V Combine(D, V most, V next) {
    return hn::Max(most, next);
  }
};

// One NaN for all: see reduce.h. (Highway's own has all payload bits set, which rounding to
// bfloat16 would carry into the sign.)
template <class D, class V>
HWY_INLINE V PlainNaN(D d, V v) {
  return hn::IfThenElse(hn::IsNaN(v), hn::Set(d, std::numeric_limits<hn::TFromD<D>>::quiet_NaN()),
                        v);
}

// All five operations on an element type that computes in floating point.
template <class Element>
void ReduceFloating(const ReduceCall& call) {
  switch (call.reduction) {
    case Reduction::kSum:
      return ReduceGradients<Element, Sum>(call);
    case Reduction::kAverage:
      return ReduceGradients<Element, Average>(call);
    case Reduction::kMin:
      return ReduceRange<Element, FloatMin>(call);
    case Reduction::kMax:
      return ReduceRange<Element, FloatMax>(call);
    case Reduction::kProduct:
      return ReduceRange<Element, Product>(call);
  }
}

}  // namespace headrace::transport::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
