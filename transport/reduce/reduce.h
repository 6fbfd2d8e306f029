// Sums (and averages, minima, maxima, products) the memory of several members, in rank order.
//
// Each input is read once, each output written once; the accumulator stays in registers. Stateless:
// any thread, any number at a time. Results are the same bits whatever SIMD target runs and
// wherever a caller cuts a range into pieces:
//  - lanes never meet, and the last partial vector goes through the same code as the others;
//  - inputs are combined strictly in the order given;
//  - sums and products of integers wrap modulo 2^bits; averages of integers are computed wider,
//    then divided, truncating toward zero (a quotient that does not fit, as it may where the
//    divisor is less than the number of inputs, wraps too);
//  - float16 and bfloat16 accumulate in float32 and are rounded once, to nearest even;
//  - where any input is NaN, and where the operation itself makes one, the result is the quiet NaN
//    with no payload (which payload survives an addition depends on the compiler's operand order);
//  - of zeros of both signs, min and max keep the one of the lower rank.
// A single input is copied as it is, unless an average divides it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "ipc/base/collective.h"

namespace headrace::transport {

// Reduces `count` elements that start `offset` bytes into every input and every output. An output
// is either one of the inputs or disjoint from all of them. 1 to kMembersMax inputs, up to as many
// outputs; pointers and offset are aligned to the element, no more.
// An average is the sum divided by `divisor`, or by the number of inputs where that is 0: inputs
// may stand for sums of several.
void ReduceInto(DType dtype, Reduction reduction, std::span<const std::byte* const> inputs,
                std::span<std::byte* const> outputs, std::size_t offset, std::size_t count,
                std::uint32_t divisor = 0);

// The instruction set ReduceInto runs on this machine, as Highway names it: "AVX2".
std::string_view SimdTargetName();

}  // namespace headrace::transport
