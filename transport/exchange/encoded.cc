#include "transport/exchange/encoded.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "ipc/base/check.h"
#include "transport/network.h"

namespace headrace::transport {
namespace {

constexpr std::size_t kElementSize = sizeof(float);
using BlockOfFloats = std::array<float, kCodecBlock>;

// Calls `visit(offset, count, block)` for whole blocks that lie in one piece, `offset` bytes behind
// the pointer, and for those that do not `gather(begin, count, block)`, where `block` is the number
// of blocks before.
template <typename Visit, typename Gather>
void ForEachBlock(const EncodedRange& range, Visit visit, Gather gather) {
  RunWalk walk = range.walk;
  std::uint64_t element = range.range.begin;
  const std::uint64_t end = element + range.range.count;
  std::uint64_t block = 0;
  while (element < end) {
    walk.GoTo(element);
    HR_CHECK(!walk.over(), element, end);
    const std::uint64_t here = std::min(end, walk.stretch().end) - element;
    const std::uint64_t whole = element + here == end ? here : here / kCodecBlock * kCodecBlock;
    const std::uint64_t count =
        whole > 0 ? whole : std::min<std::uint64_t>(kCodecBlock, end - element);
    if (whole > 0) {
      visit(walk.OffsetOf(element), count, block);
    } else {
      gather(walk, element, count, block);
    }
    element += count;
    block += CodecBlocks(count);
  }
}

void Gather(const RunWalk& walk, std::uint64_t begin, std::uint64_t count, const std::byte* memory,
            BlockOfFloats& block) {
  ForEachStretch(walk, begin, begin + count,
                 [&](std::uint64_t element, std::uint64_t offset, std::uint64_t elements) {
                   std::memcpy(block.data() + (element - begin), memory + offset,
                               static_cast<std::size_t>(elements) * kElementSize);
                 });
}

void Scatter(const RunWalk& walk, std::uint64_t begin, std::uint64_t count,
             const BlockOfFloats& block, std::byte* memory) {
  ForEachStretch(walk, begin, begin + count,
                 [&](std::uint64_t element, std::uint64_t offset, std::uint64_t elements) {
                   std::memcpy(memory + offset, block.data() + (element - begin),
                               static_cast<std::size_t>(elements) * kElementSize);
                 });
}

float* FloatsAt(std::byte* memory, std::uint64_t offset) {
  return memory == nullptr ? nullptr : reinterpret_cast<float*>(memory + offset);
}

}  // namespace

void EncodeRange(const EncodedRange& from, std::byte* out) {
  const std::size_t block_size = EncodedBlockSize(from.codec);
  ForEachBlock(
      from,
      [&](std::uint64_t offset, std::uint64_t count, std::uint64_t block) {
        Encode(from.codec, FloatsAt(from.memory, offset), FloatsAt(from.residual, offset), count,
               out + block * block_size);
      },
      [&](const RunWalk& walk, std::uint64_t begin, std::uint64_t count, std::uint64_t block) {
        BlockOfFloats values;
        BlockOfFloats residual;
        Gather(walk, begin, count, from.memory, values);
        if (from.residual != nullptr) Gather(walk, begin, count, from.residual, residual);
        Encode(from.codec, values.data(), from.residual == nullptr ? nullptr : residual.data(),
               count, out + block * block_size);
        if (from.residual != nullptr) Scatter(walk, begin, count, residual, from.residual);
      });
}

void DecodeSumRange(std::span<const std::byte* const> inputs, bool onto, std::uint32_t divisor,
                    const EncodedRange& to) {
  const std::size_t block_size = EncodedBlockSize(to.codec);
  std::array<const std::byte*, kNodesMax> ahead{};
  HR_CHECK(inputs.size() <= ahead.size(), inputs.size());
  const auto from_block = [&](std::uint64_t block) {
    for (std::size_t i = 0; i < inputs.size(); ++i) ahead[i] = inputs[i] + block * block_size;
    return std::span<const std::byte* const>(ahead.data(), inputs.size());
  };
  ForEachBlock(
      to,
      [&](std::uint64_t offset, std::uint64_t count, std::uint64_t block) {
        DecodeSum(to.codec, from_block(block), count, onto, divisor, FloatsAt(to.memory, offset));
      },
      [&](const RunWalk& walk, std::uint64_t begin, std::uint64_t count, std::uint64_t block) {
        BlockOfFloats values;
        if (onto) Gather(walk, begin, count, to.memory, values);
        DecodeSum(to.codec, from_block(block), count, onto, divisor, values.data());
        Scatter(walk, begin, count, values, to.memory);
      });
}

}  // namespace headrace::transport
