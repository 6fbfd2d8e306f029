// What codec.cc hands to the kernels: whole blocks. Private to this folder.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ipc/base/codecs.h"
#include "transport/codec/block_size.h"
#include "transport/simd_targets.h"

namespace headrace::transport {

// `residual` is not null.
struct EncodeCall {
  Codec codec;
  const float* values = nullptr;
  float* residual = nullptr;
  std::uint64_t blocks_count = 0;
  std::byte* out = nullptr;
  std::size_t last_count = kCodecBlock;  // elements of the last block that are no filling
  std::uint64_t seed = 0;
  std::uint64_t first_block = 0;
};

struct DecodeCall {
  Codec codec;
  const std::byte* const* inputs = nullptr;
  std::size_t inputs_count = 0;
  std::size_t offset = 0;  // of the first block in each input
  std::uint64_t blocks_count = 0;
  bool onto = false;
  float divisor = 1;
  float* out = nullptr;
  std::uint64_t seed = 0;
  std::uint64_t first_block = 0;
};

void EncodeBlocks(const EncodeCall& call);
void DecodeBlocks(const DecodeCall& call);

}  // namespace headrace::transport
