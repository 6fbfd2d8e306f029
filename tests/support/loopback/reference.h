// The arithmetic of transfers, written for reading and not for speed: one element at a time, in
// rank order. It shares no code with transport/reduce, so that each checks the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/transport.h"

namespace headrace::transport {

// 16-bit floating-point formats, through exact steps in double.
double DecodeFloat16(std::uint16_t bits);
double DecodeBFloat16(std::uint16_t bits);
// Round to nearest, ties to even; too large becomes infinity; every NaN the plain quiet one.
std::uint16_t EncodeFloat16(double value);
std::uint16_t EncodeBFloat16(double value);

// What ReduceInto promises (see transport/reduce/reduce.h).
void ReferenceReduce(DType dtype, Reduction reduction, std::span<const std::byte* const> inputs,
                     std::span<std::byte* const> outputs, std::size_t offset, std::size_t count,
                     std::uint32_t divisor = 0);

// What a whole transfer does to its elements [begin, end).
void ReferenceMove(const Transfer& transfer, std::uint64_t begin, std::uint64_t end);

}  // namespace headrace::transport
