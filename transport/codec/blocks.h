// What codec.cc hands to the kernels: whole blocks. Private to this folder.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/codec/codec.h"
#include "transport/simd_targets.h"

namespace headrace::transport {

// `residual` is not null.
struct EncodeCall {
  Codec codec = Codec::kNone;
  const float* values = nullptr;
  float* residual = nullptr;
  std::uint64_t blocks_count = 0;
  std::byte* out = nullptr;
};

struct DecodeCall {
  Codec codec = Codec::kNone;
  const std::byte* const* inputs = nullptr;
  std::size_t inputs_count = 0;
  std::size_t offset = 0;  // of the first block in each input
  std::uint64_t blocks_count = 0;
  bool onto = false;
  float divisor = 1;
  float* out = nullptr;
};

void EncodeBlocks(const EncodeCall& call);
void DecodeBlocks(const DecodeCall& call);

}  // namespace headrace::transport
