#include "transport/reduce/reduce.h"

#include <cstdint>
#include <cstring>

#include "ipc/base/check.h"
#include "transport/reduce/call.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "transport/reduce/reduce.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which re-includes this file.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace headrace::transport::HWY_NAMESPACE {

// Dispatched like the kernels, so that it cannot name another target than they run on.
const char* TargetNameHere() { return hwy::TargetName(HWY_TARGET); }

}  // namespace headrace::transport::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::transport {
namespace {

HWY_EXPORT(TargetNameHere);

void CopySingle(const ReduceCall& call) {
  const std::byte* from = call.inputs[0] + call.offset;
  for (std::size_t member = 0; member < call.outputs_count; ++member) {
    std::byte* to = call.outputs[member] + call.offset;
    if (to != from) std::memcpy(to, from, call.size);
  }
}

}  // namespace

std::string_view SimdTargetName() { return HWY_DYNAMIC_DISPATCH(TargetNameHere)(); }

void ReduceInto(DType dtype, Reduction reduction, std::span<const std::byte* const> inputs,
                std::span<std::byte* const> outputs, std::size_t offset, std::size_t count,
                std::uint32_t divisor) {
  HR_CHECK(!inputs.empty() && inputs.size() <= kMembersMax, inputs.size());
  HR_CHECK(outputs.size() <= kMembersMax, outputs.size());
  HR_CHECK(count <= (SIZE_MAX - offset) / SizeOf(dtype), offset, count);
  const ReduceCall call{.dtype = dtype,
                        .reduction = reduction,
                        .inputs = inputs.data(),
                        .inputs_count = inputs.size(),
                        .outputs = outputs.data(),
                        .outputs_count = outputs.size(),
                        .offset = offset,
                        .size = count * SizeOf(dtype),
                        .divisor = divisor != 0 ? divisor : inputs.size()};
  if (call.size == 0) return;
  const bool divides = reduction == Reduction::kAverage && call.divisor != 1;
  if (inputs.size() == 1 && !divides) return CopySingle(call);
  switch (dtype) {
    case DType::kFloat32:
    case DType::kFloat64:
      return ReduceFloats(call);
    case DType::kFloat16:
    case DType::kBFloat16:
      return ReduceHalves(call);
    case DType::kInt32:
    case DType::kInt64:
    case DType::kUInt8:
      if (reduction == Reduction::kAverage) return ReduceIntegerAverages(call);
      return ReduceIntegers(call);
  }
}

}  // namespace headrace::transport
#endif
