#include "transport/exchange/encoded.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "ipc/base/check.h"
#include "transport/codec/lossless.h"
#include "transport/network.h"
#include "transport/reduce/reduce.h"

namespace headrace::transport {
namespace {

constexpr std::size_t kElementSize = sizeof(float);
using BlockOfFloats = std::array<float, kCodecBlock>;

// Where elements lie, in bytes behind the pointers.
struct Place {
  std::uint64_t values;
  std::uint64_t residual;
};

// Calls `visit(place, count, block)` for whole blocks that lie in one piece, their residuals too,
// and for those that do not `gather(range, begin, count, block)`, where `block` is the number of
// blocks before, and the walks of `range` are at element `begin`.
template <typename Visit, typename Gather>
void ForEachBlock(const EncodedRange& whole_range, Visit visit, Gather gather) {
  EncodedRange range = whole_range;
  if (range.residual == nullptr) range.residual_walk = range.walk;
  RunWalk& walk = range.walk;
  RunWalk& residual_walk = range.residual_walk;
  std::uint64_t element = range.range.begin;
  const std::uint64_t end = element + range.range.count;
  std::uint64_t block = 0;
  while (element < end) {
    walk.Seek(element);
    residual_walk.Seek(element);
    HR_CHECK(!walk.over() && !residual_walk.over(), element, end);
    const std::uint64_t here =
        std::min({end, walk.stretch().end, residual_walk.stretch().end}) - element;
    const std::uint64_t whole = element + here == end ? here : here / kCodecBlock * kCodecBlock;
    const std::uint64_t count =
        whole > 0 ? whole : std::min<std::uint64_t>(kCodecBlock, end - element);
    if (whole > 0) {
      visit(Place{walk.OffsetOf(element), residual_walk.OffsetOf(element)}, count, block);
    } else {
      gather(range, element, count, block);
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

CodecSeed SeedAt(const EncodedRange& range, std::uint64_t block) {
  return {.seed = range.seed, .first_block = range.range.begin / kCodecBlock + block};
}

float* FloatsAt(std::byte* memory, std::uint64_t offset) {
  return memory == nullptr ? nullptr : reinterpret_cast<float*>(memory + offset);
}

}  // namespace

void EncodeRange(const EncodedRange& from, std::byte* out) {
  const std::size_t block_size = EncodedBlockSize(from.codec);
  ForEachBlock(
      from,
      [&](const Place& place, std::uint64_t count, std::uint64_t block) {
        Encode(from.codec, FloatsAt(from.memory, place.values),
               FloatsAt(from.residual, place.residual), count, out + block * block_size,
               SeedAt(from, block));
      },
      [&](const EncodedRange& at, std::uint64_t begin, std::uint64_t count, std::uint64_t block) {
        BlockOfFloats values;
        BlockOfFloats residual;
        Gather(at.walk, begin, count, from.memory, values);
        if (from.residual != nullptr) {
          Gather(at.residual_walk, begin, count, from.residual, residual);
        }
        Encode(from.codec, values.data(), from.residual == nullptr ? nullptr : residual.data(),
               count, out + block * block_size, SeedAt(from, block));
        if (from.residual != nullptr) {
          Scatter(at.residual_walk, begin, count, residual, from.residual);
        }
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
      [&](const Place& place, std::uint64_t count, std::uint64_t block) {
        DecodeSum(to.codec, from_block(block), count, onto, divisor,
                  FloatsAt(to.memory, place.values), SeedAt(to, block));
      },
      [&](const EncodedRange& at, std::uint64_t begin, std::uint64_t count, std::uint64_t block) {
        BlockOfFloats values;
        if (onto) Gather(at.walk, begin, count, to.memory, values);
        DecodeSum(to.codec, from_block(block), count, onto, divisor, values.data(),
                  SeedAt(to, block));
        Scatter(at.walk, begin, count, values, to.memory);
      });
}

void AddResidual(const EncodedRange& range) {
  const auto add = [](float* values, float* residuals, std::uint64_t count) {
    if (std::all_of(residuals, residuals + count, [](float each) { return each == 0; })) return;
    for (std::uint64_t i = 0; i < count; ++i) {
      if (residuals[i] != 0) values[i] += std::exchange(residuals[i], 0.0F);
    }
  };
  const std::uint64_t begin = range.range.begin;
  ForEachStretch(range.walk, begin, begin + range.range.count,
                 [&](std::uint64_t element, std::uint64_t offset, std::uint64_t count) {
                   ForEachStretch(
                       range.residual_walk, element, element + count,
                       [&](std::uint64_t first, std::uint64_t residual, std::uint64_t here) {
                         float* const values = FloatsAt(range.memory, offset) + (first - element);
                         float* const residuals = FloatsAt(range.residual, residual);
                         for (std::uint64_t i = 0; i < here; i += kCodecBlock) {
                           add(values + i, residuals + i,
                               std::min<std::uint64_t>(kCodecBlock, here - i));
                         }
                       });
                 });
}

void SampleEncoded(const EncodedRange& range, const std::byte* encoded, CodecUse& use) {
  const std::uint64_t begin = range.range.begin;
  const std::uint64_t count = range.range.count;
  auto* const values = reinterpret_cast<float*>(range.memory);
  DecodeSum(range.codec, {&encoded, 1}, count, false, 1, values, SeedAt(range, 0));
  ForEachStretch(range.residual_walk, begin, begin + count,
                 [&](std::uint64_t element, std::uint64_t offset, std::uint64_t here) {
                   const float* const residuals = FloatsAt(range.residual, offset);
                   for (std::uint64_t i = 0; i < here; ++i) {
                     const float residual = residuals[i];
                     const float value = values[element - begin + i] + residual;
                     if (!std::isfinite(value)) continue;
                     use.sum_squares += double{value} * double{value};
                     use.residual_squares += double{residual} * double{residual};
                   }
                 });
}

std::size_t CopyRange(const EncodedRange& from, std::byte* out) {
  const std::uint64_t begin = from.range.begin;
  ForEachStretch(from.walk, begin, begin + from.range.count,
                 [&](std::uint64_t element, std::uint64_t offset, std::uint64_t count) {
                   std::memcpy(out + (element - begin) * kElementSize, from.memory + offset,
                               static_cast<std::size_t>(count) * kElementSize);
                 });
  return static_cast<std::size_t>(from.range.count) * kElementSize;
}

std::size_t EncodeLosslessRange(const EncodedRange& from, std::byte* out) {
  const std::size_t plain_size = static_cast<std::size_t>(from.range.count) * kElementSize;
  if (plain_size == 0) return 0;
  LosslessWriter writer{.out = out, .size_max = plain_size - 1};
  ForEachBlock(
      from,
      [&](const Place& place, std::uint64_t count, std::uint64_t /*block*/) {
        if (writer.fits) EncodeLossless(FloatsAt(from.memory, place.values), count, writer);
      },
      [&](const EncodedRange& at, std::uint64_t begin, std::uint64_t count,
          std::uint64_t /*block*/) {
        if (!writer.fits) return;
        BlockOfFloats values;
        Gather(at.walk, begin, count, from.memory, values);
        EncodeLossless(values.data(), count, writer);
      });
  return writer.fits ? writer.size : CopyRange(from, out);
}

namespace {

// Messages that are read and summed block by block.
class LosslessSum {
 public:
  LosslessSum(std::span<const std::span<const std::byte>> messages, std::size_t own,
              Reduction reduction, std::uint32_t divisor, std::size_t plain_size)
      : count_(messages.size()), own_(own), reduction_(reduction), divisor_(divisor) {
    HR_CHECK(count_ <= kNodesMax && (own == kNowhere || own <= count_), count_, own);
    for (std::size_t i = 0; i < count_; ++i) {
      readers_[i] = {.in = messages[i], .is_plain = messages[i].size() == plain_size};
    }
  }

  // At most a block.
  void Add(float* values, std::uint64_t count) {
    std::array<const std::byte*, kNodesMax + 1> inputs{};
    std::size_t inputs_count = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      if (i == own_) inputs[inputs_count++] = reinterpret_cast<const std::byte*>(values);
      DecodeLossless(readers_[i], count, decoded_[i].data());
      if (!readers_[i].makes_sense) return;
      inputs[inputs_count++] = reinterpret_cast<const std::byte*>(decoded_[i].data());
    }
    if (own_ == count_) inputs[inputs_count++] = reinterpret_cast<const std::byte*>(values);
    auto* const output = reinterpret_cast<std::byte*>(values);
    ReduceInto(DType::kFloat32, reduction_, {inputs.data(), inputs_count}, {&output, 1}, 0,
               static_cast<std::size_t>(count), divisor_);
  }

  // After the last block.
  std::optional<std::size_t> FirstWrong() const {
    for (std::size_t i = 0; i < count_; ++i) {
      if (!readers_[i].makes_sense || !readers_[i].in.empty()) return i;
    }
    return std::nullopt;
  }

 private:
  std::size_t count_;
  std::size_t own_;
  Reduction reduction_;
  std::uint32_t divisor_;
  std::array<LosslessReader, kNodesMax> readers_;
  std::array<BlockOfFloats, kNodesMax> decoded_;  // the first `count_` have values
};

}  // namespace

std::optional<std::size_t> ReduceLosslessRange(std::span<const std::span<const std::byte>> messages,
                                               std::size_t own, Reduction reduction,
                                               std::uint32_t divisor, const EncodedRange& to) {
  const std::size_t plain_size = static_cast<std::size_t>(to.range.count) * kElementSize;
  LosslessSum sum(messages, own, reduction, divisor, plain_size);
  ForEachBlock(
      to,
      [&](const Place& place, std::uint64_t count, std::uint64_t /*block*/) {
        float* const values = FloatsAt(to.memory, place.values);
        for (std::uint64_t i = 0; i < count; i += kCodecBlock) {
          sum.Add(values + i, std::min<std::uint64_t>(kCodecBlock, count - i));
        }
      },
      [&](const EncodedRange& at, std::uint64_t begin, std::uint64_t count,
          std::uint64_t /*block*/) {
        BlockOfFloats values;
        Gather(at.walk, begin, count, to.memory, values);
        sum.Add(values.data(), count);
        Scatter(at.walk, begin, count, values, to.memory);
      });
  return sum.FirstWrong();
}

}  // namespace headrace::transport
