#include "transport/codec/codec.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "ipc/base/check.h"
#include "transport/codec/blocks.h"

namespace headrace::transport {

std::size_t EncodedBlockSize(Codec codec) {
  switch (codec.kind) {
    case Codec::kBFloat16:
    case Codec::kFloat16:
      return kCodecBlock * 2;
    case Codec::kInt8:
    case Codec::kInt8Stochastic:
    case Codec::kFloat8E4M3:
    case Codec::kFloat8E5M2:
      return sizeof(float) + kCodecBlock;
    case Codec::kInt4:
    case Codec::kInt4Stochastic:
      return sizeof(float) + kCodecBlock / 2;
    case Codec::kSign:
      return sizeof(float) + kCodecBlock / 8;
    case Codec::kTopK:
      return codec.parameter * (1 + sizeof(float) / 2);
    case Codec::kRandomK:
      return codec.parameter * sizeof(float);
    case Codec::kNone:
    case Codec::kLossless:
    case Codec::kPowerSgd:
      break;
  }
  HR_CHECK(false, static_cast<int>(codec.kind));
  return 0;
}

std::size_t EncodedSize(Codec codec, std::uint64_t count) {
  if (!HasBlocks(codec)) return static_cast<std::size_t>(count) * sizeof(float);
  return static_cast<std::size_t>(CodecBlocks(count)) * EncodedBlockSize(codec);
}

double EncodedShare(Codec codec) {
  if (!HasBlocks(codec)) return 1;
  return static_cast<double>(EncodedBlockSize(codec)) / (kCodecBlock * sizeof(float));
}

namespace {

// Whether an element of `count`, each with those bits for its exponent, has all of them set.
template <typename Bits>
bool HasNotFinite(const std::byte* elements, std::size_t count, Bits exponent) {
  bool found = false;
  for (std::size_t i = 0; i < count; ++i) {
    Bits bits = 0;
    std::memcpy(&bits, elements + i * sizeof bits, sizeof bits);
    found |= (bits & exponent) == exponent;
  }
  return found;
}

bool IsNotFinite(Codec codec, const std::byte* block) {
  constexpr std::uint32_t kFloat = 0x7F800000;
  constexpr std::uint16_t kBFloat16 = 0x7F80;
  constexpr std::uint16_t kFloat16 = 0x7C00;
  switch (codec.kind) {
    case Codec::kBFloat16:
      return HasNotFinite(block, kCodecBlock, kBFloat16);
    case Codec::kFloat16:
      return HasNotFinite(block, kCodecBlock, kFloat16);
    case Codec::kTopK:
      return HasNotFinite(block + codec.parameter, codec.parameter, kBFloat16);
    case Codec::kRandomK:
      return HasNotFinite(block, codec.parameter, kFloat);
    default:
      return HasNotFinite(block, 1, kFloat);  // the scale
  }
}

}  // namespace

std::uint64_t NotFiniteBlocks(Codec codec, const std::byte* encoded, std::uint64_t blocks_count) {
  HR_CHECK(HasBlocks(codec), static_cast<int>(codec.kind));
  const std::size_t block_size = EncodedBlockSize(codec);
  std::uint64_t count = 0;
  for (std::uint64_t block = 0; block < blocks_count; ++block) {
    count += IsNotFinite(codec, encoded + block * block_size) ? 1 : 0;
  }
  return count;
}

void Encode(Codec codec, const float* values, float* residual, std::uint64_t count, std::byte* out,
            const CodecSeed& seed) {
  const std::size_t block_size = EncodedBlockSize(codec);
  const std::uint64_t whole = count / kCodecBlock;
  EncodeCall call{.codec = codec,
                  .values = values,
                  .residual = residual,
                  .blocks_count = whole,
                  .out = out,
                  .seed = seed.seed,
                  .first_block = seed.first_block};
  if (residual != nullptr) {
    EncodeBlocks(call);
  } else {
    call.blocks_count = 1;
    for (std::uint64_t block = 0; block < whole; ++block) {
      std::array<float, kCodecBlock> none{};
      call.residual = none.data();
      EncodeBlocks(call);
      call.values += kCodecBlock;
      call.out += block_size;
      ++call.first_block;
    }
  }
  const std::size_t rest = count % kCodecBlock;
  if (rest == 0) return;
  std::array<float, kCodecBlock> last{};
  std::array<float, kCodecBlock> last_residual{};
  std::memcpy(last.data(), values + whole * kCodecBlock, rest * sizeof(float));
  if (residual != nullptr) {
    std::memcpy(last_residual.data(), residual + whole * kCodecBlock, rest * sizeof(float));
  }
  call.values = last.data();
  call.residual = last_residual.data();
  call.blocks_count = 1;
  call.out = out + whole * block_size;
  call.last_count = rest;
  call.first_block = seed.first_block + whole;
  EncodeBlocks(call);
  if (residual != nullptr) {
    std::memcpy(residual + whole * kCodecBlock, last_residual.data(), rest * sizeof(float));
  }
}

void DecodeSum(Codec codec, std::span<const std::byte* const> inputs, std::uint64_t count,
               bool onto, std::uint32_t divisor, float* out, const CodecSeed& seed) {
  HR_CHECK(HasBlocks(codec) && divisor != 0 && !inputs.empty(), count, divisor, inputs.size());
  const std::uint64_t whole = count / kCodecBlock;
  DecodeCall call{.codec = codec,
                  .inputs = inputs.data(),
                  .inputs_count = inputs.size(),
                  .blocks_count = whole,
                  .onto = onto,
                  .divisor = static_cast<float>(divisor),
                  .out = out,
                  .seed = seed.seed,
                  .first_block = seed.first_block};
  DecodeBlocks(call);
  const std::size_t rest = count % kCodecBlock;
  if (rest == 0) return;
  std::array<float, kCodecBlock> last{};
  if (onto) std::memcpy(last.data(), out + whole * kCodecBlock, rest * sizeof(float));
  call.offset = static_cast<std::size_t>(whole) * EncodedBlockSize(codec);
  call.first_block = seed.first_block + whole;
  call.blocks_count = 1;
  call.out = last.data();
  DecodeBlocks(call);
  std::memcpy(out + whole * kCodecBlock, last.data(), rest * sizeof(float));
}

}  // namespace headrace::transport
