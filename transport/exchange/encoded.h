// Elements of a transfer on their way into an encoding and out of it. Their memory may be of
// several runs; the encoding is of the elements, one behind the other.
#pragma once

#include <cstddef>
#include <span>

#include "transport/codec/codec.h"
#include "transport/exchange/cut.h"
#include "transport/runs.h"

namespace headrace::transport {

// A range of a float32 transfer: `walk` is anywhere before the end of the stretch that holds its
// first element. Residuals lie as the elements do, behind a pointer of their own, or nowhere.
struct EncodedRange {
  Codec codec = Codec::kNone;
  RunWalk walk;
  Cut::Range range;
  std::byte* memory = nullptr;
  std::byte* residual = nullptr;
};

// See codec.h.
void EncodeRange(const EncodedRange& from, std::byte* out);
void DecodeSumRange(std::span<const std::byte* const> inputs, bool onto, std::uint32_t divisor,
                    const EncodedRange& to);

}  // namespace headrace::transport
