// The kernels of codecs: what one warp does of a launch. Compiled by nvcc for GPUs, and for the
// host, where the tests' double of CUDA's driver runs the same code for every warp of a launch, and
// the bits are compared with those of transport/codec.
//
// Warps share the blocks of 256 elements in strides. A block is read, coded and written by one
// warp.
#pragma once

#include "transport/nvlink/codec_formats.h"

namespace headrace::transport::kernels {

// Lane `lane`'s elements of a block at `from`, of which `count` are there; the others are 0.
template <class Order>
HR_KERNEL Eight LoadEight(const float* from, std::uint32_t count, std::uint32_t lane) {
  Eight eight;
  if constexpr (Order::kInFours) {
    if (count == kCodecBlock && AddressOf(from) % kUnitSize == 0) {
      HR_UNROLL for (std::uint32_t i = 0; i < kEight; i += 4) {
        const auto four =
            Load<Vector>(reinterpret_cast<const std::byte*>(from + Order::At(lane, i)));
        memcpy(&eight.v[i], &four, sizeof(four));
      }
      return eight;
    }
  }
  HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
    const std::uint32_t at = Order::At(lane, i);
    eight.v[i] = at < count ? from[at] : 0;
  }
  return eight;
}

template <class Order>
HR_KERNEL void StoreEight(float* to, std::uint32_t count, std::uint32_t lane, const Eight& eight) {
  if constexpr (Order::kInFours) {
    if (count == kCodecBlock && AddressOf(to) % kUnitSize == 0) {
      HR_UNROLL for (std::uint32_t i = 0; i < kEight; i += 4) {
        Vector four;
        memcpy(&four, &eight.v[i], sizeof(four));
        Store(reinterpret_cast<std::byte*>(to + Order::At(lane, i)), four);
      }
      return;
    }
  }
  HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
    const std::uint32_t at = Order::At(lane, i);
    if (at < count) to[at] = eight.v[i];
  }
}

// Where a block's residuals lie: in one piece, or each in the stretch of its element.
class ResidualPlace {
 public:
  HR_KERNEL ResidualPlace(const EncodeWork& work, std::uint32_t begin, std::uint32_t count)
      : work_(work), begin_(begin) {
    if (work.residual == nullptr) return;
    // The last stretch that begins at or before the block.
    std::uint32_t end = work.stretches_count;
    while (end - stretch_ > 1) {
      const std::uint32_t middle = stretch_ + (end - stretch_) / 2;
      if (work.begins[middle] <= begin) {
        stretch_ = middle;
      } else {
        end = middle;
      }
    }
    const std::uint32_t next = stretch_ + 1;
    if (next == work.stretches_count || work.begins[next] >= begin + count) {
      whole_ = At(stretch_, begin);
    }
  }

  // Null: it is in several pieces, or there is none.
  HR_KERNEL float* whole() const { return whole_; }
  HR_KERNEL float* OfElement(std::uint32_t at) const {
    const std::uint32_t element = begin_ + at;
    std::uint32_t stretch = stretch_;
    while (stretch + 1 < work_.stretches_count && work_.begins[stretch + 1] <= element) ++stretch;
    return At(stretch, element);
  }

 private:
  HR_KERNEL float* At(std::uint32_t stretch, std::uint32_t element) const {
    std::byte* const at = work_.residual + work_.offsets[stretch] +
                          std::size_t{4} * (element - work_.begins[stretch]);
    return reinterpret_cast<float*>(at);
  }

  const EncodeWork& work_;
  std::uint32_t begin_;
  std::uint32_t stretch_ = 0;
  float* whole_ = nullptr;
};

template <class Order>
HR_KERNEL Eight LoadResidual(const EncodeWork& work, const ResidualPlace& place,
                             std::uint32_t count, std::uint32_t lane) {
  if (place.whole() != nullptr) return LoadEight<Order>(place.whole(), count, lane);
  Eight eight{};
  if (work.residual == nullptr) return eight;
  HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
    const std::uint32_t at = Order::At(lane, i);
    if (at < count) eight.v[i] = *place.OfElement(at);
  }
  return eight;
}

template <class Order>
HR_KERNEL void StoreResidual(const EncodeWork& work, const ResidualPlace& place,
                             std::uint32_t count, std::uint32_t lane, const Eight& eight) {
  if (place.whole() != nullptr) return StoreEight<Order>(place.whole(), count, lane, eight);
  if (work.residual == nullptr) return;
  HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
    const std::uint32_t at = Order::At(lane, i);
    if (at < count) *place.OfElement(at) = eight.v[i];
  }
}

HR_KERNEL std::uint32_t BlocksIn(std::uint32_t count) {
  return (count + kBlockCount - 1) / kBlockCount;
}
HR_KERNEL std::uint32_t CountInBlock(std::uint32_t count, std::uint32_t block) {
  const std::uint32_t left = count - block * kBlockCount;
  return left < kBlockCount ? left : kBlockCount;
}

template <class Format>
HR_KERNEL void EncodeBody(const EncodeWork& work, std::uint32_t warp, std::uint32_t warps) {
  using Order = typename Format::Order;
  const std::uint32_t blocks = BlocksIn(work.count);
  HR_NO_UNROLL for (std::uint32_t block = warp; block < blocks; block += warps) {
    const std::uint32_t begin = block * kBlockCount;
    const std::uint32_t count = CountInBlock(work.count, block);
    const BlockKind kind{.count = count,
                         .kept = work.kept,
                         .seed = SeedOfBlock(work.seed, work.first_block + block)};
    const ResidualPlace place(work, begin, count);
    EightEach values;
    EachLane([&](std::uint32_t lane) {
      values[lane] = LoadEight<Order>(work.values + begin, count, lane);
      const Eight residual = LoadResidual<Order>(work, place, count, lane);
      HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
        values[lane].v[i] = Plus(values[lane].v[i], residual.v[i]);
      }
    });
    Format::Encode(values, kind, work.out + std::size_t{block} * Format::Size(work.kept));
    EachLane(
        [&](std::uint32_t lane) { StoreResidual<Order>(work, place, count, lane, values[lane]); });
  }
}

template <class Format>
HR_KERNEL void DecodeBody(const DecodeWork& work, std::uint32_t warp, std::uint32_t warps) {
  using Order = typename Format::Order;
  const std::uint32_t blocks = BlocksIn(work.count);
  HR_NO_UNROLL for (std::uint32_t block = warp; block < blocks; block += warps) {
    float* const out = work.out + std::size_t{block} * kCodecBlock;
    const std::uint32_t count = CountInBlock(work.count, block);
    const BlockKind kind{.kept = work.kept,
                         .seed = SeedOfBlock(work.seed, work.first_block + block)};
    EightEach sums;
    EachLane([&](std::uint32_t lane) {
      sums[lane] = work.onto ? LoadEight<Order>(out, count, lane) : Eight{};
    });
    HR_NO_UNROLL for (std::uint32_t input = 0; input < work.inputs_count; ++input) {
      AddDecoded<Format>(sums, kind,
                         work.inputs[input] + std::size_t{block} * Format::Size(work.kept),
                         input == 0 && !work.onto);
    }
    EachLane([&](std::uint32_t lane) {
      HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
        float& sum = sums[lane].v[i];
        if (work.divisor != 1) sum = PlainNaN(Over(sum, work.divisor));
      }
      StoreEight<Order>(out, count, lane, sums[lane]);
    });
  }
}

}  // namespace headrace::transport::kernels
