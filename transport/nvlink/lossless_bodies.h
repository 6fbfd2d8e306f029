// The kernels of the lossless codec, whose blocks are of different sizes (codec/lossless.h): what
// one warp does of a launch. See codec_bodies.h.
//
// Where blocks begin is in a table, in memory of the host that GPUs reach. Who encodes writes it,
// and is one block of threads for that: its warps measure all blocks, one of them adds up, and all
// write. Who decodes gets it from the host, which has checked what was received.
#pragma once

#include "transport/codec/lossless_layout.h"
#include "transport/nvlink/codec_bodies.h"

namespace headrace::transport::kernels {

// Encoded blocks pass through memory of their warp, from which whole words move: blocks begin at
// any byte.
struct alignas(4) LosslessScratch {
  std::byte bytes[LosslessBlock::kSizeMax + 7];
};

// What one lane has written there is seen by the others.
HR_KERNEL void SynchronizeLanes() {
#ifdef __CUDA_ARCH__
  __syncwarp();
#endif
}

HR_KERNEL std::uint32_t ExponentOf(float value) { return MagnitudeBits(value) >> 23; }
HR_KERNEL std::uint32_t LeastOf(std::uint32_t a, std::uint32_t b) { return b < a ? b : a; }
HR_KERNEL void StoreByte(std::byte* to, std::uint32_t byte) {
  *to = static_cast<std::byte>(byte & 0xFFU);
}
HR_KERNEL std::uint32_t LoadByte(const std::byte* from) {
  return static_cast<std::uint32_t>(*from);
}

// Each lane's sum of its own number and those of the lanes before.
HR_KERNEL PerLane<std::uint32_t> SumsUntil(PerLane<std::uint32_t>& values) {
  PerLane<std::uint32_t> sums;
#ifdef __CUDA_ARCH__
  sums.own = values.own;
  HR_UNROLL for (std::uint32_t step = 1; step < kLanes; step *= 2) {
    const std::uint32_t before = __shfl_up_sync(~0U, sums.own, step);
    if (threadIdx.x % kLanes >= step) sums.own += before;
  }
#else
  std::uint32_t sum = 0;
  for (std::uint32_t lane = 0; lane < kLanes; ++lane) sums[lane] = sum += values[lane];
#endif
  return sums;
}

// What a whole block comes to.
struct LosslessShape {
  bool is_zeros;  // +0, all of them
  std::uint32_t top;
  std::uint32_t exceptions_count;

  HR_KERNEL bool is_plain() const { return exceptions_count > LosslessBlock::kExceptionsMax; }
  HR_KERNEL std::uint32_t Size() const {
    if (is_zeros) return 1;
    if (is_plain()) return LosslessBlock::kSizeMax;
    return static_cast<std::uint32_t>(LosslessBlock::kExceptionsAt) + exceptions_count;
  }
};

HR_KERNEL std::uint32_t CodeOf(float value, std::uint32_t top) {
  return LeastOf(top - ExponentOf(value), LosslessBlock::kException);
}

HR_KERNEL LosslessShape ShapeOf(EightEach& values) {
  PerLane<std::uint32_t> most;
  PerLane<bool> any;
  EachLane([&](std::uint32_t lane) {
    most[lane] = 0;
    any[lane] = false;
    HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
      const float value = values[lane].v[i];
      const std::uint32_t exponent = ExponentOf(value);
      most[lane] = exponent > most[lane] ? exponent : most[lane];
      any[lane] = any[lane] || BitsAs<std::uint32_t>(value) != 0;
    }
  });
  LosslessShape shape{
      .is_zeros = LanesWhere(any) == 0, .top = MaxOfLanes(most), .exceptions_count = 0};
  PerLane<std::uint32_t> exceptions;
  EachLane([&](std::uint32_t lane) {
    exceptions[lane] = 0;
    HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
      exceptions[lane] += CodeOf(values[lane].v[i], shape.top) == LosslessBlock::kException;
    }
  });
  shape.exceptions_count = SumOfLanes(exceptions);
  return shape;
}

// Moves `size` bytes out of the scratch: words, where there are whole ones behind `to`.
HR_KERNEL void CopyOut(const std::byte* scratch, std::uint32_t size, std::byte* to) {
  const auto ahead = static_cast<std::uint32_t>(-AddressOf(to) % 4);
  const std::uint32_t head = LeastOf(size, ahead);
  const std::uint32_t words = (size - head) / 4;
  EachLane([&](std::uint32_t lane) {
    if (lane < head) to[lane] = scratch[lane];
    for (std::uint32_t i = lane; i < words; i += kLanes) {
      std::uint32_t word;
      memcpy(&word, scratch + head + std::size_t{4} * i, sizeof(word));
      Store(to + head + std::size_t{4} * i, word);
    }
    const std::uint32_t rest = head + 4 * words;
    if (lane < size - rest) to[rest + lane] = scratch[rest + lane];
  });
}

// Moves `size` bytes into the scratch, as whole words, and returns where they begin there.
HR_KERNEL const std::byte* CopyIn(const std::byte* from, std::uint32_t size,
                                  LosslessScratch& scratch) {
  const auto ahead = static_cast<std::uint32_t>(AddressOf(from) % 4);
  const std::uint32_t words = (ahead + size + 3) / 4;
  SynchronizeLanes();
  EachLane([&](std::uint32_t lane) {
    for (std::uint32_t i = lane; i < words; i += kLanes) {
      Store(scratch.bytes + std::size_t{4} * i,
            Load<std::uint32_t>(from - ahead + std::size_t{4} * i));
    }
  });
  SynchronizeLanes();
  return scratch.bytes + ahead;
}

HR_KERNEL void WriteCoded(EightEach& values, const LosslessShape& shape, std::byte* out) {
  EachLane([&](std::uint32_t lane) {
    if (lane == 0) {
      StoreByte(out, static_cast<std::uint32_t>(LosslessBlock::Form::kCoded));
      StoreByte(out + 1, shape.top);
      StoreByte(out + 2, shape.exceptions_count);
    }
    std::uint32_t word = 0;
    HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
      const std::uint32_t at = InTurns::At(lane, i);
      const auto bits = BitsAs<std::uint32_t>(values[lane].v[i]);
      word |= CodeOf(values[lane].v[i], shape.top) << 3 * i;
      StoreByte(out + LosslessBlock::kLowAt + 2 * at, bits);
      StoreByte(out + LosslessBlock::kLowAt + 2 * at + 1, bits >> 8);
      StoreByte(out + LosslessBlock::kHighAt + at, (bits >> 24 & 0x80U) | (bits >> 16 & 0x7FU));
    }
    StoreByte(out + LosslessBlock::kWordsAt + 2 * lane, word);
    StoreByte(out + LosslessBlock::kWordsAt + 2 * lane + 1, word >> 8);
    StoreByte(out + LosslessBlock::kUpperWordsAt + lane, word >> 16);
  });
  std::uint32_t count = 0;
  HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
    PerLane<bool> is_exception;
    EachLane([&](std::uint32_t lane) {
      is_exception[lane] = CodeOf(values[lane].v[i], shape.top) == LosslessBlock::kException;
    });
    const std::uint32_t lanes = LanesWhere(is_exception);
    EachLane([&](std::uint32_t lane) {
      if (!is_exception[lane]) return;
      const std::uint32_t at = count + CountOf(lanes & ((1U << lane) - 1));
      StoreByte(out + LosslessBlock::kExceptionsAt + at, ExponentOf(values[lane].v[i]));
    });
    count += CountOf(lanes);
  }
}

HR_KERNEL void WriteBlock(EightEach& values, const LosslessShape& shape, LosslessScratch& scratch,
                          std::byte* to) {
  std::byte* const out = scratch.bytes;
  SynchronizeLanes();
  if (shape.is_zeros || shape.is_plain()) {
    EachLane([&](std::uint32_t lane) {
      const auto form = shape.is_zeros ? LosslessBlock::Form::kZeros : LosslessBlock::Form::kPlain;
      if (lane == 0) StoreByte(out, static_cast<std::uint32_t>(form));
      if (shape.is_zeros) return;
      HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
        memcpy(out + 1 + std::size_t{4} * InTurns::At(lane, i), &values[lane].v[i], sizeof(float));
      }
    });
  } else {
    WriteCoded(values, shape, out);
  }
  SynchronizeLanes();
  CopyOut(out, shape.Size(), to);
}

HR_KERNEL EightEach LoadBlock(const float* from) {
  EightEach values;
  EachLane([&](std::uint32_t lane) { values[lane] = LoadEight<InTurns>(from, kBlockCount, lane); });
  return values;
}

// The first of three steps: the table has what each block takes.
HR_KERNEL void MeasureLosslessBody(const LosslessEncodeWork& work, std::uint32_t warp,
                                   std::uint32_t warps) {
  if (work.as_it_is) return;
  const std::uint32_t blocks = work.count / kBlockCount;
  HR_NO_UNROLL for (std::uint32_t block = warp; block < blocks; block += warps) {
    EightEach values = LoadBlock(work.values + std::size_t{block} * kBlockCount);
    const std::uint32_t size = ShapeOf(values).Size();
    EachLane([&](std::uint32_t lane) {
      if (lane == 0) work.table[block] = size;
    });
  }
}

// The second, by one warp: the table has where each block begins, where the elements behind them
// do, and the bytes of all: those of the elements where these go as they are, since the encoding
// gains too little.
HR_KERNEL void PlaceLosslessBody(const LosslessEncodeWork& work) {
  const std::uint32_t blocks = work.count / kBlockCount;
  const std::uint32_t plain_size = 4 * work.count;
  std::uint32_t size = 0;
  bool fits = !work.as_it_is;
  const auto is_too_large = [&](std::uint32_t end, std::uint32_t count) {
    const std::uint32_t plain = 4 * count;
    return end >= plain_size || (count >= kLosslessTriedCount && end > plain - plain / 32);
  };
  for (std::uint32_t begin = 0; begin < blocks && fits; begin += kLanes) {
    PerLane<std::uint32_t> sizes;
    EachLane([&](std::uint32_t lane) {
      sizes[lane] = begin + lane < blocks ? work.table[begin + lane] : 0;
    });
    PerLane<std::uint32_t> ends = SumsUntil(sizes);
    PerLane<bool> too_large;
    EachLane([&](std::uint32_t lane) {
      const std::uint32_t block = begin + lane;
      const std::uint32_t end = size + ends[lane];
      too_large[lane] = block < blocks && is_too_large(end, (block + 1) * kBlockCount);
      if (block < blocks) work.table[block] = end - sizes[lane];
    });
    fits = LanesWhere(too_large) == 0;
    size += OfLane(ends, kLanes - 1);
  }
  const std::uint32_t behind = 4 * (work.count - blocks * kBlockCount);
  fits = fits && (behind == 0 || !is_too_large(size + behind, work.count));
  EachLane([&](std::uint32_t lane) {
    if (lane != 0) return;
    work.table[blocks] = size;
    work.table[blocks + 1] = fits ? size + behind : plain_size;
  });
}

// The third.
HR_KERNEL void WriteLosslessBody(const LosslessEncodeWork& work, std::uint32_t warp,
                                 std::uint32_t warps, LosslessScratch& scratch) {
  const std::uint32_t blocks = work.count / kBlockCount;
  if (work.table[blocks + 1] == 4 * work.count) {
    EachLane([&](std::uint32_t lane) {
      for (std::uint32_t i = warp * kLanes + lane; i < work.count; i += warps * kLanes) {
        Store(work.out + std::size_t{4} * i, work.values[i]);
      }
    });
    return;
  }
  HR_NO_UNROLL for (std::uint32_t block = warp; block < blocks; block += warps) {
    EightEach values = LoadBlock(work.values + std::size_t{block} * kBlockCount);
    WriteBlock(values, ShapeOf(values), scratch, work.out + work.table[block]);
  }
  if (warp != blocks % warps) return;
  const std::uint32_t behind = work.count - blocks * kBlockCount;
  SynchronizeLanes();
  EachLane([&](std::uint32_t lane) {
    for (std::uint32_t i = lane; i < behind; i += kLanes) {
      Store(scratch.bytes + std::size_t{4} * i, work.values[std::size_t{blocks} * kBlockCount + i]);
    }
  });
  SynchronizeLanes();
  CopyOut(scratch.bytes, 4 * behind, work.out + work.table[blocks]);
}

// The host has found that the block makes sense.
HR_KERNEL void ReadBlock(const std::byte* in, EightEach& values) {
  const auto form = static_cast<LosslessBlock::Form>(*in);
  if (form == LosslessBlock::Form::kZeros) return Clear(values);
  if (form == LosslessBlock::Form::kPlain) {
    EachLane([&](std::uint32_t lane) {
      HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
        memcpy(&values[lane].v[i], in + 1 + std::size_t{4} * InTurns::At(lane, i), sizeof(float));
      }
    });
    return;
  }
  const std::uint32_t top = LoadByte(in + 1);
  PerLane<std::uint32_t> words;
  EachLane([&](std::uint32_t lane) {
    words[lane] = LoadByte(in + LosslessBlock::kWordsAt + 2 * lane) |
                  LoadByte(in + LosslessBlock::kWordsAt + 2 * lane + 1) << 8 |
                  LoadByte(in + LosslessBlock::kUpperWordsAt + lane) << 16;
  });
  std::uint32_t count = 0;
  HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
    PerLane<bool> is_exception;
    EachLane([&](std::uint32_t lane) {
      is_exception[lane] = (words[lane] >> 3 * i & 7U) == LosslessBlock::kException;
    });
    const std::uint32_t lanes = LanesWhere(is_exception);
    EachLane([&](std::uint32_t lane) {
      const std::uint32_t at = InTurns::At(lane, i);
      const std::uint32_t before = count + CountOf(lanes & ((1U << lane) - 1));
      const std::uint32_t exponent = is_exception[lane]
                                         ? LoadByte(in + LosslessBlock::kExceptionsAt + before)
                                         : (top - (words[lane] >> 3 * i & 7U)) & 0xFFU;
      const std::uint32_t high = LoadByte(in + LosslessBlock::kHighAt + at);
      const std::uint32_t low = LoadByte(in + LosslessBlock::kLowAt + 2 * at) |
                                LoadByte(in + LosslessBlock::kLowAt + 2 * at + 1) << 8;
      values[lane].v[i] =
          BitsAs<float>((high & 0x80U) << 24 | exponent << 23 | (high & 0x7FU) << 16 | low);
    });
    count += CountOf(lanes);
  }
}

// What an input has of a block, of which `count` elements are there.
HR_KERNEL EightEach DecodedOf(const LosslessInput& input, std::uint32_t block, std::uint32_t count,
                              LosslessScratch& scratch) {
  EightEach values;
  if (input.table == nullptr) {
    const auto* const from = reinterpret_cast<const float*>(input.in);
    EachLane([&](std::uint32_t lane) {
      values[lane] = LoadEight<InTurns>(from + std::size_t{block} * kBlockCount, count, lane);
    });
    return values;
  }
  const std::uint32_t begin = input.table[block];
  const bool is_whole = count == kBlockCount;
  const std::uint32_t size = is_whole ? input.table[block + 1] - begin : 4 * count;
  const std::byte* const in = CopyIn(input.in + begin, size, scratch);
  if (is_whole) {
    ReadBlock(in, values);
    return values;
  }
  EachLane([&](std::uint32_t lane) {
    HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
      const std::uint32_t at = InTurns::At(lane, i);
      values[lane].v[i] = 0;
      if (at < count) memcpy(&values[lane].v[i], in + std::size_t{4} * at, sizeof(float));
    }
  });
  return values;
}

HR_KERNEL void DecodeLosslessBody(const LosslessDecodeWork& work, std::uint32_t warp,
                                  std::uint32_t warps, LosslessScratch& scratch) {
  const std::uint32_t blocks = BlocksIn(work.count);
  // What is a sum already keeps its bits, of NaN too.
  const bool copies = work.inputs_count == 1 && work.own > 1 && work.divisor == 1;
  HR_NO_UNROLL for (std::uint32_t block = warp; block < blocks; block += warps) {
    float* const out = work.out + std::size_t{block} * kBlockCount;
    const std::uint32_t count = CountInBlock(work.count, block);
    EightEach sums;
    bool is_first = true;
    const auto add = [&](EightEach& next) {
      EachLane([&](std::uint32_t lane) {
        HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
          const float value = next[lane].v[i];
          sums[lane].v[i] = copies ? value : SumOf(sums[lane].v[i], value, is_first);
        }
      });
      is_first = false;
    };
    HR_NO_UNROLL for (std::uint32_t input = 0; input <= work.inputs_count; ++input) {
      if (input == work.own) {
        EightEach own;
        EachLane([&](std::uint32_t lane) { own[lane] = LoadEight<InTurns>(out, count, lane); });
        add(own);
      }
      if (input == work.inputs_count) break;
      EightEach decoded = DecodedOf(work.inputs[input], block, count, scratch);
      add(decoded);
    }
    EachLane([&](std::uint32_t lane) {
      HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
        float& sum = sums[lane].v[i];
        if (work.divisor != 1) sum = PlainNaN(Over(sum, work.divisor));
      }
      StoreEight<InTurns>(out, count, lane, sums[lane]);
    });
  }
}

// Adds what was left out before to the elements, and leaves nothing.
HR_KERNEL void AddResidualBody(const EncodeWork& work, std::uint32_t warp, std::uint32_t warps) {
  const std::uint32_t blocks = BlocksIn(work.count);
  HR_NO_UNROLL for (std::uint32_t block = warp; block < blocks; block += warps) {
    const std::uint32_t begin = block * kBlockCount;
    const std::uint32_t count = CountInBlock(work.count, block);
    const ResidualPlace place(work, begin, count);
    EachLane([&](std::uint32_t lane) {
      Eight residual = LoadResidual<InTurns>(work, place, count, lane);
      HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
        const std::uint32_t at = InTurns::At(lane, i);
        if (at >= count || residual.v[i] == 0) continue;
        work.values[begin + at] = Plus(work.values[begin + at], residual.v[i]);
        residual.v[i] = 0;
        float* const whole = place.whole();
        *(whole != nullptr ? whole + at : place.OfElement(at)) = 0;
      }
    });
  }
}

}  // namespace headrace::transport::kernels
