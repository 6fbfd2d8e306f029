// What a warp does with one block in each codec, bit for bit what transport/codec does. `values`
// are the block's elements plus their residuals, zeros behind its end; Encode leaves the new
// residuals there. AddDecoded adds what one input has of the block.
//
// The steps and their reasons are those of transport/codec/scaled-inl.h and kept-inl.h.
#pragma once

#include "transport/codec/block_kind.h"
#include "transport/nvlink/codec_lanes.h"
#include "transport/nvlink/kernel_bodies.h"

namespace headrace::transport::kernels {

inline constexpr float kFloatMax = 0x1.FFFFFEp127F;
inline constexpr float kFloatMin = 0x1p-126F;
inline constexpr std::uint32_t kNaNBits = 0x7FC00000;

// All NaN are one. Processors differ in that which two infinities give.
HR_KERNEL float SumOf(float sum, float value, bool first) {
  return PlainNaN(first ? value : Plus(sum, value));
}

// Two bytes an element.
template <class Element, std::uint32_t kLargestBits>
struct HalfFormat {
  using Order = InHalves;
  static HR_KERNEL std::size_t Size(std::uint32_t) { return 2 * kCodecBlock; }

  static HR_KERNEL std::uint16_t Narrowed(float value) {
    if (!IsFinite(value)) return Element::Encode(value);
    const float most = BitsAs<float>(kLargestBits);
    const float clamped = value > most ? most : value < -most ? -most : value;
    return Element::Encode(clamped);
  }
  static HR_KERNEL float Kept(float value, std::uint16_t code) {
    return IsFinite(value) ? Minus(value, Element::Decode(code)) : 0;
  }
  static HR_KERNEL void Encode(EightEach& values, const BlockKind&, std::byte* out) {
    EachLane([&](std::uint32_t lane) {
      Vector words;
      HR_UNROLL for (std::uint32_t i = 0; i < 4; ++i) {
        float& low = values[lane].v[i];
        float& high = values[lane].v[4 + i];
        const std::uint16_t low_code = Narrowed(low);
        const std::uint16_t high_code = Narrowed(high);
        words.words[i] = low_code | std::uint32_t{high_code} << 16;
        low = Kept(low, low_code);
        high = Kept(high, high_code);
      }
      StoreVector<false>(out + 16 * lane, words);
    });
  }
  static HR_KERNEL void Decode(const std::byte* in, EightEach& decoded) {
    EachLane([&](std::uint32_t lane) {
      const Vector words = LoadVector<false>(in + 16 * lane);
      HR_UNROLL for (std::uint32_t i = 0; i < 4; ++i) {
        decoded[lane].v[i] = Element::Decode(static_cast<std::uint16_t>(words.words[i]));
        decoded[lane].v[4 + i] = Element::Decode(static_cast<std::uint16_t>(words.words[i] >> 16));
      }
    });
  }
};

// A number that is whole, and bits whose lowest are its two's complement.
struct Whole {
  float number;
  std::uint32_t bits;
};
HR_KERNEL Whole ToWhole(float value) {
  const float shifted = Plus(value, 0x1.8p23F);
  return {Minus(shifted, 0x1.8p23F), BitsAs<std::uint32_t>(shifted)};
}
template <bool kByChance>
HR_KERNEL Whole Rounded(float value, std::uint32_t chance) {
  if constexpr (!kByChance) return ToWhole(value);
  const float share = Times(static_cast<float>(chance), 0x1p-16F);
  return ToWhole(Plus(value, Plus(share, 0x1p-17F - 0.5F)));
}
// For elements i and i + 128 of the block.
template <bool kByChance>
HR_KERNEL std::uint32_t ChanceOf(const BlockKind& kind, std::uint32_t element) {
  if constexpr (!kByChance) return 0;
  return ScrambledOf(kind.seed + element);
}

template <bool kByChance>
struct ByteNumbers {
  static constexpr float kLargest = 127;
  static constexpr std::size_t kSize = kCodecBlock;

  static HR_KERNEL void Encode(EightEach& values, float inverse, float scale, const BlockKind& kind,
                               std::byte* out) {
    EachLane([&](std::uint32_t lane) {
      std::uint32_t words[2] = {};
      HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
        float& value = values[lane].v[i];
        const std::uint32_t both = ChanceOf<kByChance>(kind, 4 * lane + i % 4);
        const std::uint32_t chance = i < 4 ? both & 0xFFFFU : both >> 16;
        const Whole code = Rounded<kByChance>(Times(value, inverse), chance);
        words[i / 4] |= (code.bits & 0xFFU) << (i % 4 * 8);
        value = Minus(value, Times(code.number, scale));
      }
      Store(out + 4 * lane, words[0]);
      Store(out + kCodecBlock / 2 + 4 * lane, words[1]);
    });
  }
  static HR_KERNEL void Decode(const std::byte* in, float scale, EightEach& decoded) {
    EachLane([&](std::uint32_t lane) {
      const std::uint32_t words[2] = {Load<std::uint32_t>(in + 4 * lane),
                                      Load<std::uint32_t>(in + kCodecBlock / 2 + 4 * lane)};
      HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
        const auto code = static_cast<std::int8_t>(words[i / 4] >> (i % 4 * 8));
        decoded[lane].v[i] = Times(static_cast<float>(code), scale);
      }
    });
  }
};

template <bool kByChance>
struct NibbleNumbers {
  static constexpr float kLargest = 7;
  static constexpr std::size_t kSize = kCodecBlock / 2;

  static HR_KERNEL void Encode(EightEach& values, float inverse, float scale, const BlockKind& kind,
                               std::byte* out) {
    EachLane([&](std::uint32_t lane) {
      std::uint32_t word = 0;
      HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
        float& value = values[lane].v[i];
        const std::uint32_t both = ChanceOf<kByChance>(kind, 4 * lane + i % 4);
        const std::uint32_t chance = i < 4 ? both & 0xFFFFU : both >> 16;
        const Whole code = Rounded<kByChance>(Times(value, inverse), chance);
        word |= (code.bits & 15U) << (i % 4 * 8 + i / 4 * 4);
        value = Minus(value, Times(code.number, scale));
      }
      Store(out + 4 * lane, word);
    });
  }
  static HR_KERNEL void Decode(const std::byte* in, float scale, EightEach& decoded) {
    EachLane([&](std::uint32_t lane) {
      const auto word = Load<std::uint32_t>(in + 4 * lane);
      HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
        const std::uint32_t nibble = word >> (i % 4 * 8 + i / 4 * 4) & 15U;
        const std::int32_t code =
            static_cast<std::int32_t>(nibble) - static_cast<std::int32_t>((nibble & 8U) << 1);
        decoded[lane].v[i] = Times(static_cast<float>(code), scale);
      }
    });
  }
};

// Floats of eight bits; see transport/codec/scaled-inl.h.
template <int kDigits, int kBias, int kLargestNumber>
struct ByteFloats {
  static constexpr float kLargest = kLargestNumber;
  static constexpr std::size_t kSize = kCodecBlock;
  static constexpr int kShift = 23 - kDigits;
  static constexpr std::uint32_t kBiases = std::uint32_t{127 - kBias} << 23;

  static HR_KERNEL std::uint32_t Bits(float value) {
    const std::uint32_t sign = BitsAs<std::uint32_t>(value) >> 24 & 0x80U;
    const std::uint32_t magnitude = MagnitudeBits(value);
    if (magnitude < kBiases + (1U << 23)) {
      const std::uint32_t unit = std::uint32_t{127 + 23 + 1 - kBias - kDigits} << 23;
      const float shifted = Plus(BitsAs<float>(magnitude), BitsAs<float>(unit));
      return (BitsAs<std::uint32_t>(shifted) - unit) | sign;
    }
    const std::uint32_t odd = magnitude >> kShift & 1U;
    return (magnitude + odd + ((1U << (kShift - 1)) - 1U - kBiases)) >> kShift | sign;
  }
  static HR_KERNEL float OfBits(std::uint32_t bits) {
    const std::uint32_t magnitude = bits & 0x7FU;
    const std::uint32_t sign = (bits & 0x80U) << 24;
    std::uint32_t number = (magnitude << kShift) + kBiases;
    if (magnitude < (1U << kDigits)) {
      const auto last = BitsAs<float>(std::uint32_t{127 + 1 - kBias - kDigits} << 23);
      number = BitsAs<std::uint32_t>(Times(static_cast<float>(magnitude), last));
    }
    return BitsAs<float>(number | sign);
  }

  static HR_KERNEL void Encode(EightEach& values, float inverse, float scale, const BlockKind&,
                               std::byte* out) {
    EachLane([&](std::uint32_t lane) {
      std::uint32_t words[2] = {};
      HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
        float& value = values[lane].v[i];
        const float scaled = Times(value, inverse);
        const std::uint32_t code = Bits(scaled > kLargest    ? kLargest
                                        : scaled < -kLargest ? -kLargest
                                                             : scaled);
        words[i / 4] |= code << (i % 4 * 8);
        value = Minus(value, Times(OfBits(code), scale));
      }
      Store(out + 4 * lane, words[0]);
      Store(out + kCodecBlock / 2 + 4 * lane, words[1]);
    });
  }
  static HR_KERNEL void Decode(const std::byte* in, float scale, EightEach& decoded) {
    EachLane([&](std::uint32_t lane) {
      const std::uint32_t words[2] = {Load<std::uint32_t>(in + 4 * lane),
                                      Load<std::uint32_t>(in + kCodecBlock / 2 + 4 * lane)};
      HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
        decoded[lane].v[i] = Times(OfBits(words[i / 4] >> (i % 4 * 8) & 0xFFU), scale);
      }
    });
  }
};

// The block has a value that is not finite: its scale says so, and nothing is kept.
HR_KERNEL void EncodeNaN(EightEach& values, std::byte* out, std::size_t size) {
  Clear(values);
  EachLane([&](std::uint32_t lane) {
    for (std::size_t i = lane * 4; i < size; i += std::size_t{4} * kLanes) {
      Store(out + i, i == 0 ? kNaNBits : 0U);
    }
  });
}

template <class Codes>
struct ScaledFormat {
  using Order = InHalves;
  static constexpr float kScaleMax = kFloatMax / Codes::kLargest * (1 - 0x1p-22F);
  static HR_KERNEL std::size_t Size(std::uint32_t) { return sizeof(float) + Codes::kSize; }

  static HR_KERNEL void Encode(EightEach& values, const BlockKind& kind, std::byte* out) {
    const std::uint32_t bits = LargestOf(values);
    if (bits >= kInfinityBits) return EncodeNaN(values, out, Size(0));
    const auto largest = BitsAs<float>(bits);
    float scale = Least(Over(largest, Codes::kLargest), kScaleMax);
    float inverse = Over(Codes::kLargest, largest);
    if (Times(largest, inverse) > Codes::kLargest) {
      inverse = BitsAs<float>(BitsAs<std::uint32_t>(inverse) - 1);  // the next towards 0
    }
    if (scale < kFloatMin) scale = inverse = 0;
    EachLane([&](std::uint32_t lane) {
      if (lane == 0) Store(out, scale);
    });
    Codes::Encode(values, inverse, scale, kind, out + sizeof(float));
  }
  static HR_KERNEL void Decode(const std::byte* in, EightEach& decoded) {
    Codes::Decode(in + sizeof(float), Load<float>(in), decoded);
  }
};

// Bit b of byte j is the sign of element 32 b + j.
struct SignFormat {
  using Order = InTurns;
  static HR_KERNEL std::size_t Size(std::uint32_t) { return sizeof(float) + kCodecBlock / 8; }

  static HR_KERNEL void Encode(EightEach& values, const BlockKind& kind, std::byte* out) {
    if (LargestOf(values) >= kInfinityBits) return EncodeNaN(values, out, Size(0));
    float scale = MeanMagnitude(values, kind.count);
    if (scale < kFloatMin) scale = 0;
    EachLane([&](std::uint32_t lane) {
      std::uint8_t byte = 0;
      HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
        float& value = values[lane].v[i];
        const std::uint32_t sign = BitsAs<std::uint32_t>(value) >> 31;
        byte = static_cast<std::uint8_t>(byte | sign << i);
        value = Minus(value, sign != 0 ? -scale : scale);
      }
      if (lane == 0) Store(out, scale);
      Store(out + sizeof(float) + lane, byte);
    });
  }
  static HR_KERNEL void Decode(const std::byte* in, EightEach& decoded) {
    const auto scale = Load<std::uint32_t>(in);
    EachLane([&](std::uint32_t lane) {
      const std::uint32_t byte = Load<std::uint8_t>(in + sizeof(float) + lane);
      HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
        decoded[lane].v[i] = BitsAs<float>((byte >> i & 1U) << 31 ^ scale);
      }
    });
  }

  // Sixteen sums, of every sixteenth element each, and then those. The elements of sum j are in
  // lanes j and j + 16.
  static HR_KERNEL float MeanMagnitude(EightEach& values, std::size_t count) {
    EightEach others = OfOthers(values, 16);
    PerLane<float> sums;
    EachLane([&](std::uint32_t lane) {
      float sum = 0;
      HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
        sum = Plus(sum, Times(Magnitude(values[lane].v[i]), 1.0F / kCodecBlock));
        sum = Plus(sum, Times(Magnitude(others[lane].v[i]), 1.0F / kCodecBlock));
      }
      sums[lane] = sum;
    });
    float mean = 0;
    HR_UNROLL for (std::uint32_t j = 0; j < 16; ++j) mean = Plus(mean, OfLane(sums, j));
    mean = Times(mean, Over(static_cast<float>(kCodecBlock), static_cast<float>(count)));
    return Least(mean, kFloatMax);
  }
};

// One of each share of the block, whose place all nodes know.
struct RandomFormat {
  using Order = InTurns;
  static HR_KERNEL std::size_t Size(std::uint32_t kept) { return sizeof(float) * kept; }

  // The share that the element is of, and whether it is the one of it.
  struct Share {
    std::uint32_t number;
    bool is_kept;
  };
  static HR_KERNEL Share ShareOf(const BlockKind& kind, std::uint32_t element) {
    const auto kept = static_cast<std::uint32_t>(kind.kept);
    const std::uint32_t number = ((element + 1) * kept - 1) / kBlockCount;
    const std::uint32_t begin = number * kBlockCount / kept;
    const std::uint32_t end = (number + 1) * kBlockCount / kept;
    const std::uint64_t chance = ScrambledOf(kind.seed + number);
    return {number, element == begin + static_cast<std::uint32_t>(chance * (end - begin) >> 32)};
  }

  static HR_KERNEL void Encode(EightEach& values, const BlockKind& kind, std::byte* out) {
    const bool is_finite = LargestOf(values) < kInfinityBits;
    EachLane([&](std::uint32_t lane) {
      HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
        float& value = values[lane].v[i];
        const Share share = ShareOf(kind, Order::At(lane, i));
        if (share.is_kept) {
          Store(out + 4 * share.number, is_finite ? value : BitsAs<float>(kNaNBits));
        }
        if (share.is_kept || !is_finite) value = 0;
      }
    });
  }
  // The other elements keep their sums as they are.
  static HR_KERNEL void AddTo(EightEach& sums, const BlockKind& kind, const std::byte* in,
                              bool first) {
    EachLane([&](std::uint32_t lane) {
      HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
        float& sum = sums[lane].v[i];
        if (first) sum = 0;
        const Share share = ShareOf(kind, Order::At(lane, i));
        if (!share.is_kept) continue;
        const auto value = Load<float>(in + 4 * share.number);
        sum = SumOf(sum, value, first);
      }
    });
  }
};

// The largest, as bfloat16: their places in the block, one byte each, and then their values.
struct LargestFormat {
  using Order = InTurns;
  static HR_KERNEL std::size_t Size(std::uint32_t kept) { return std::size_t{3} * kept; }

  static HR_KERNEL void StoreHalf(std::byte* to, std::uint16_t half) {
    Store(to, static_cast<std::uint8_t>(half));
    Store(to + 1, static_cast<std::uint8_t>(half >> 8));
  }
  static HR_KERNEL std::uint16_t LoadHalf(const std::byte* from) {
    return static_cast<std::uint16_t>(Load<std::uint8_t>(from) | Load<std::uint8_t>(from + 1) << 8);
  }
  static HR_KERNEL std::uint16_t Narrowed(float value) {
    const std::uint16_t half = BFloat16::Encode(value);
    // What is finite stays so.
    const bool overflows = (half & 0x7FFFU) == 0x7F80U && IsFinite(value);
    return overflows ? static_cast<std::uint16_t>(half - 1) : half;
  }

  static HR_KERNEL std::uint32_t CountFrom(EightEach& values, std::uint32_t bits) {
    PerLane<std::uint32_t> counts;
    EachLane([&](std::uint32_t lane) {
      counts[lane] = 0;
      HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
        counts[lane] += MagnitudeBits(values[lane].v[i]) >= bits ? 1U : 0U;
      }
    });
    return SumOfLanes(counts);
  }

  // Elements of more than `bits` are kept, and the first `equal_count` of those that have them.
  struct Threshold {
    std::uint32_t bits;
    std::uint32_t equal_count;
  };
  // Halves the range of bits.
  static HR_KERNEL Threshold LeastOf(EightEach& values, std::uint32_t most, std::uint32_t kept) {
    std::uint32_t low = 0;
    std::uint32_t high = most;
    std::uint32_t above = 0;
    while (low < high) {
      const std::uint32_t middle = low + (high - low) / 2 + 1;
      const std::uint32_t count = CountFrom(values, middle);
      if (count == kept) return {middle - 1, 0};
      if (count > kept) {
        low = middle;
      } else {
        high = middle - 1;
        above = count;
      }
    }
    return {low, kept - above};
  }

  static HR_KERNEL void Encode(EightEach& values, const BlockKind& kind, std::byte* out) {
    EachLane([&](std::uint32_t lane) {
      HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
        values[lane].v[i] = PlainNaN(values[lane].v[i]);
      }
    });
    const auto kept = static_cast<std::uint32_t>(kind.kept);
    const Threshold least = LeastOf(values, LargestOf(values), kept);
    std::uint32_t count = 0;        // that are stored
    std::uint32_t equal_count = 0;  // of those that are equal to the least, before
    HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
      PerLane<bool> above;
      PerLane<bool> equal;
      EachLane([&](std::uint32_t lane) {
        const std::uint32_t bits = MagnitudeBits(values[lane].v[i]);
        above[lane] = bits > least.bits;
        equal[lane] = bits == least.bits;
      });
      const std::uint32_t lanes_equal = LanesWhere(equal);
      PerLane<bool> chosen;
      EachLane([&](std::uint32_t lane) {
        const std::uint32_t before = (1U << lane) - 1;
        const bool counts = equal_count + CountOf(lanes_equal & before) < least.equal_count;
        chosen[lane] = above[lane] || (equal[lane] && counts);
      });
      const std::uint32_t lanes_chosen = LanesWhere(chosen);
      EachLane([&](std::uint32_t lane) {
        float& value = values[lane].v[i];
        if (chosen[lane]) {
          const std::uint32_t at = count + CountOf(lanes_chosen & ((1U << lane) - 1));
          const std::uint16_t half = Narrowed(value);
          Store(out + at, static_cast<std::uint8_t>(Order::At(lane, i)));
          StoreHalf(out + kept + std::size_t{2} * at, half);
          value = IsFinite(value) ? Minus(value, BFloat16::Decode(half)) : 0;
        }
        if (!IsFinite(value)) value = 0;
      });
      count += CountOf(lanes_chosen);
      equal_count += CountOf(lanes_equal);
    }
  }

  // Inputs may be any bytes: of a place that comes twice all values are added, or the last counts.
  static HR_KERNEL void AddTo(EightEach& sums, const BlockKind& kind, const std::byte* in,
                              bool first) {
    if (first) Clear(sums);
    const auto kept = static_cast<std::uint32_t>(kind.kept);
    for (std::uint32_t begin = 0; begin < kept; begin += kLanes) {
      PerLane<std::uint32_t> entries;  // the place, and the bits of the value above it
      EachLane([&](std::uint32_t lane) {
        const std::uint32_t at = begin + lane;
        entries[lane] = 0;
        if (at >= kept) return;
        entries[lane] = Load<std::uint8_t>(in + at) |
                        std::uint32_t{LoadHalf(in + kept + std::size_t{2} * at)} << 16;
      });
      for (std::uint32_t at = begin; at < kept && at < begin + kLanes; ++at) {
        const std::uint32_t entry = OfLane(entries, at - begin);
        const std::uint32_t place = entry & 0xFFU;
        const auto value = BitsAs<float>(entry & 0xFFFF0000U);
        EachLane([&](std::uint32_t lane) {
          if (place % kLanes != lane) return;
          HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
            float& sum = sums[lane].v[i];
            if (i == place / kLanes) sum = SumOf(sum, value, first);
          }
        });
      }
    }
  }
};

// Adds what an input has to the sums, or puts it there where it is the first.
template <class Format>
HR_KERNEL void AddDecoded(EightEach& sums, const BlockKind& kind, const std::byte* in, bool first) {
  if constexpr (requires { Format::AddTo(sums, kind, in, first); }) {
    Format::AddTo(sums, kind, in, first);
  } else {
    EightEach decoded;
    Format::Decode(in, decoded);
    EachLane([&](std::uint32_t lane) {
      HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
        float& sum = sums[lane].v[i];
        sum = SumOf(sum, decoded[lane].v[i], first);
      }
    });
  }
}

}  // namespace headrace::transport::kernels
