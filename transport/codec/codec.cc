#include "transport/codec/codec.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "ipc/base/check.h"
#include "transport/codec/blocks.h"

namespace headrace::transport {

std::size_t EncodedBlockSize(Codec codec) {
  switch (codec) {
    case Codec::kBFloat16:
    case Codec::kFloat16:
      return kCodecBlock * 2;
    case Codec::kInt8:
      return sizeof(float) + kCodecBlock;
    case Codec::kInt4:
      return sizeof(float) + kCodecBlock / 2;
    case Codec::kNone:
      break;
  }
  HR_CHECK(false, static_cast<int>(codec));
  return 0;
}

std::size_t EncodedSize(Codec codec, std::uint64_t count) {
  return static_cast<std::size_t>(CodecBlocks(count)) * EncodedBlockSize(codec);
}

double EncodedShare(Codec codec) {
  if (codec == Codec::kNone) return 1;
  return static_cast<double>(EncodedBlockSize(codec)) / (kCodecBlock * sizeof(float));
}

double ErrorBound(Codec codec) {
  // Half of the last place. The quotient's own rounding may move a value just beside the middle
  // between two steps to the farther one.
  constexpr double kSlack = 1 + 1e-5;
  switch (codec) {
    case Codec::kNone:
      return 0;
    case Codec::kBFloat16:
      return 0x1p-8 * kSlack;
    case Codec::kFloat16:
      return 0x1p-11 * kSlack;
    case Codec::kInt8:
      return 0.5 / 127 * kSlack;
    case Codec::kInt4:
      return 0.5 / 7 * kSlack;
  }
  return 0;
}

void Encode(Codec codec, const float* values, float* residual, std::uint64_t count,
            std::byte* out) {
  HR_CHECK(codec != Codec::kNone, count);
  const std::size_t block_size = EncodedBlockSize(codec);
  const std::uint64_t whole = count / kCodecBlock;
  if (residual != nullptr) {
    EncodeBlocks({codec, values, residual, whole, out});
  } else {
    for (std::uint64_t block = 0; block < whole; ++block) {
      std::array<float, kCodecBlock> none{};
      EncodeBlocks({codec, values + block * kCodecBlock, none.data(), 1, out + block * block_size});
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
  EncodeBlocks({codec, last.data(), last_residual.data(), 1, out + whole * block_size});
  if (residual != nullptr) {
    std::memcpy(residual + whole * kCodecBlock, last_residual.data(), rest * sizeof(float));
  }
}

void DecodeSum(Codec codec, std::span<const std::byte* const> inputs, std::uint64_t count,
               bool onto, std::uint32_t divisor, float* out) {
  HR_CHECK(codec != Codec::kNone && divisor != 0 && !inputs.empty(), count, divisor, inputs.size());
  const std::uint64_t whole = count / kCodecBlock;
  DecodeCall call{.codec = codec,
                  .inputs = inputs.data(),
                  .inputs_count = inputs.size(),
                  .blocks_count = whole,
                  .onto = onto,
                  .divisor = static_cast<float>(divisor),
                  .out = out};
  DecodeBlocks(call);
  const std::size_t rest = count % kCodecBlock;
  if (rest == 0) return;
  std::array<float, kCodecBlock> last{};
  if (onto) std::memcpy(last.data(), out + whole * kCodecBlock, rest * sizeof(float));
  call.offset = static_cast<std::size_t>(whole) * EncodedBlockSize(codec);
  call.blocks_count = 1;
  call.out = last.data();
  DecodeBlocks(call);
  std::memcpy(out + whole * kCodecBlock, last.data(), rest * sizeof(float));
}

}  // namespace headrace::transport
