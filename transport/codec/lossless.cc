#include "transport/codec/lossless.h"

#include "ipc/base/check.h"
#include "transport/codec/lossless_layout.h"
#include "transport/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "transport/codec/lossless.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which re-includes this file.
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "transport/codec/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headrace::transport::HWY_NAMESPACE {

using Form = LosslessBlock::Form;
inline constexpr std::size_t kWords = LosslessBlock::kWords;
inline constexpr std::size_t kWordsAt = LosslessBlock::kWordsAt;
inline constexpr std::size_t kUpperWordsAt = LosslessBlock::kUpperWordsAt;
inline constexpr std::size_t kLowAt = LosslessBlock::kLowAt;
inline constexpr std::size_t kHighAt = LosslessBlock::kHighAt;
inline constexpr std::size_t kExceptionsAt = LosslessBlock::kExceptionsAt;
inline constexpr std::size_t kExceptionsMax = LosslessBlock::kExceptionsMax;
inline constexpr std::uint32_t kException = LosslessBlock::kException;

HWY_INLINE VU32 LoadBits(const float* from) { return hn::BitCast(U32(), hn::LoadU(F32(), from)); }
HWY_INLINE VU32 ExponentOf(VU32 bits) {
  return hn::And(hn::ShiftRight<23>(bits), hn::Set(U32(), 0xFF));
}
HWY_INLINE VU32 LoadPairs(const std::byte* from) {
  return hn::PromoteTo(U32(), hn::LoadU(U16Half(), reinterpret_cast<const std::uint16_t*>(from)));
}
HWY_INLINE void StorePairs(VU32 v, std::byte* to) {
  hn::StoreU(hn::TruncateTo(U16Half(), v), U16Half(), reinterpret_cast<std::uint16_t*>(to));
}

// Writes what each element has beside its exponent.
HWY_INLINE void StoreFractions(const float* values, std::byte* out) {
  for (std::size_t i = 0; i < kCodecBlock; i += hn::Lanes(U32())) {
    const VU32 bits = LoadBits(values + i);
    StorePairs(bits, out + kLowAt + 2 * i);
    const VU32 sign = hn::And(hn::ShiftRight<24>(bits), hn::Set(U32(), 0x80));
    const VU32 fraction = hn::And(hn::ShiftRight<16>(bits), hn::Set(U32(), 0x7F));
    StoreBytes(hn::Or(sign, fraction), out + kHighAt + i);
  }
}

HWY_INLINE void StoreCodes(const std::byte* codes, std::byte* out) {
  for (std::size_t j = 0; j < kWords; j += hn::Lanes(U32())) {
    VU32 word = LoadBytes(codes + j + 7 * kWords);
    for (std::size_t i = 7; i > 0; --i) {
      word = hn::Or(hn::ShiftLeft<3>(word), LoadBytes(codes + j + (i - 1) * kWords));
    }
    StorePairs(word, out + kWordsAt + 2 * j);
    StoreBytes(hn::ShiftRight<16>(word), out + kUpperWordsAt + j);
  }
}

HWY_INLINE void LoadCodes(const std::byte* in, std::byte* codes) {
  for (std::size_t j = 0; j < kWords; j += hn::Lanes(U32())) {
    VU32 word = hn::Or(LoadPairs(in + kWordsAt + 2 * j),
                       hn::ShiftLeft<16>(LoadBytes(in + kUpperWordsAt + j)));
    for (std::size_t i = 0; i < 8; ++i) {
      StoreBytes(hn::And(word, hn::Set(U32(), 7)), codes + j + i * kWords);
      word = hn::ShiftRight<3>(word);
    }
  }
}

std::size_t PlainBlock(const float* values, std::byte* out) {
  out[0] = static_cast<std::byte>(Form::kPlain);
  std::memcpy(out + 1, values, kPlainCodecBlockSize);
  return 1 + kPlainCodecBlockSize;
}

// Writes a block and returns its size, at most 1 + kPlainCodecBlockSize.
std::size_t EncodeOne(const float* values, std::byte* out) {
  VU32 all = hn::Zero(U32());
  VI32 most = hn::Zero(I32());
  for (std::size_t i = 0; i < kCodecBlock; i += hn::Lanes(U32())) {
    const VU32 bits = LoadBits(values + i);
    all = hn::Or(all, bits);
    most = hn::Max(most, hn::BitCast(I32(), ExponentOf(bits)));
  }
  if (hn::AllTrue(U32(), hn::Eq(all, hn::Zero(U32())))) {
    out[0] = static_cast<std::byte>(Form::kZeros);
    return 1;
  }
  const VI32 top = hn::MaxOfLanes(I32(), most);
  HWY_ALIGN std::byte codes[kCodecBlock];
  HWY_ALIGN std::uint32_t exceptions[kCodecBlock + hn::MaxLanes(U32())];
  std::size_t exceptions_count = 0;
  for (std::size_t i = 0; i < kCodecBlock; i += hn::Lanes(U32())) {
    const VU32 exponent = ExponentOf(LoadBits(values + i));
    const VU32 below = hn::Sub(hn::BitCast(U32(), top), exponent);
    const VU32 code = hn::Min(below, hn::Set(U32(), kException));
    StoreBytes(code, codes + i);
    const auto is_exception = hn::Eq(code, hn::Set(U32(), kException));
    exceptions_count +=
        hn::CompressStore(exponent, is_exception, U32(), exceptions + exceptions_count);
  }
  if (exceptions_count > kExceptionsMax) return PlainBlock(values, out);
  out[0] = static_cast<std::byte>(Form::kCoded);
  out[1] = static_cast<std::byte>(hn::GetLane(top));
  out[2] = static_cast<std::byte>(exceptions_count);
  StoreCodes(codes, out);
  StoreFractions(values, out);
  for (std::size_t i = 0; i < exceptions_count; ++i) {
    out[kExceptionsAt + i] = static_cast<std::byte>(exceptions[i]);
  }
  return kExceptionsAt + exceptions_count;
}

// Decodes a coded block that is there as a whole; false where its codes have more or fewer
// exceptions than it says.
bool DecodeCoded(const std::byte* in, float* out) {
  HWY_ALIGN std::byte codes[kCodecBlock];
  LoadCodes(in, codes);
  const VU32 top = hn::Set(U32(), std::to_integer<std::uint32_t>(in[1]));
  const auto exceptions_count = std::to_integer<std::size_t>(in[2]);
  std::size_t next = 0;
  for (std::size_t i = 0; i < kCodecBlock; i += hn::Lanes(U32())) {
    const VU32 code = LoadBytes(codes + i);
    VU32 exponent = hn::And(hn::Sub(top, code), hn::Set(U32(), 0xFF));
    if (!hn::AllFalse(U32(), hn::Eq(code, hn::Set(U32(), kException)))) {
      HWY_ALIGN std::uint32_t lanes[hn::MaxLanes(U32())];
      hn::Store(exponent, U32(), lanes);
      for (std::size_t lane = 0; lane < hn::Lanes(U32()); ++lane) {
        if (codes[i + lane] != std::byte{kException}) continue;
        if (next == exceptions_count) return false;
        lanes[lane] = std::to_integer<std::uint32_t>(in[kExceptionsAt + next++]);
      }
      exponent = hn::Load(U32(), lanes);
    }
    const VU32 high = LoadBytes(in + kHighAt + i);
    const VU32 sign = hn::ShiftLeft<24>(hn::And(high, hn::Set(U32(), 0x80)));
    const VU32 fraction = hn::Or(hn::ShiftLeft<16>(hn::And(high, hn::Set(U32(), 0x7F))),
                                 LoadPairs(in + kLowAt + 2 * i));
    const VU32 bits = hn::Or(hn::Or(sign, fraction), hn::ShiftLeft<23>(exponent));
    hn::StoreU(hn::BitCast(F32(), bits), F32(), out + i);
  }
  return next == exceptions_count;
}

// Returns how many bytes of `in` the block has, 0 where it makes no sense.
std::size_t DecodeOne(std::span<const std::byte> in, float* out) {
  if (in.empty()) return 0;
  switch (static_cast<Form>(in[0])) {
    case Form::kZeros:
      std::memset(out, 0, kPlainCodecBlockSize);
      return 1;
    case Form::kPlain:
      if (in.size() < 1 + kPlainCodecBlockSize) return 0;
      std::memcpy(out, in.data() + 1, kPlainCodecBlockSize);
      return 1 + kPlainCodecBlockSize;
    case Form::kCoded: {
      if (in.size() < kExceptionsAt) return 0;
      const std::size_t size = kExceptionsAt + std::to_integer<std::size_t>(in[2]);
      return in.size() >= size && DecodeCoded(in.data(), out) ? size : 0;
    }
  }
  return 0;
}

void Append(const std::byte* bytes, std::size_t size, std::uint64_t count, LosslessWriter& to) {
  to.count += count;
  to.fits = to.fits && size <= to.size_max - to.size;
  if (!to.fits) return;
  if (bytes != to.out + to.size) std::memcpy(to.out + to.size, bytes, size);
  to.size += size;
  const std::uint64_t plain_size = to.count * sizeof(float);
  to.fits = to.count < kLosslessTriedCount || to.size <= plain_size - plain_size / 32;
}

void EncodeBlocksLossless(const float* values, std::uint64_t count, LosslessWriter& to) {
  std::array<std::byte, 1 + kPlainCodecBlockSize> block;
  for (; count >= kCodecBlock && to.fits; count -= kCodecBlock, values += kCodecBlock) {
    const bool has_room = to.size_max - to.size >= block.size();
    std::byte* const out = has_room ? to.out + to.size : block.data();
    const std::size_t size = EncodeOne(values, out);
    Append(out, size, kCodecBlock, to);
  }
  if (count == 0 || !to.fits) return;
  Append(reinterpret_cast<const std::byte*>(values),
         static_cast<std::size_t>(count) * sizeof(float), count, to);
}

void DecodeBlocksLossless(LosslessReader& from, std::uint64_t count, float* out) {
  const std::uint64_t coded = from.is_plain ? 0 : count / kCodecBlock * kCodecBlock;
  for (std::uint64_t i = 0; i < coded && from.makes_sense; i += kCodecBlock) {
    const std::size_t size = DecodeOne(from.in, out + i);
    from.makes_sense = size > 0;
    from.in = from.in.subspan(size);
  }
  const std::size_t rest = static_cast<std::size_t>(count - coded) * sizeof(float);
  from.makes_sense = from.makes_sense && from.in.size() >= rest;
  if (!from.makes_sense || rest == 0) return;
  std::memcpy(out + coded, from.in.data(), rest);
  from.in = from.in.subspan(rest);
}

}  // namespace headrace::transport::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::transport {

HWY_EXPORT(EncodeBlocksLossless);
HWY_EXPORT(DecodeBlocksLossless);

namespace {

// The bytes of the block that `in` begins with; 0 where it makes no sense. A coded one has as many
// exceptions as it says.
std::size_t SizeOfBlock(std::span<const std::byte> in) {
  if (in.empty()) return 0;
  switch (static_cast<LosslessBlock::Form>(in[0])) {
    case LosslessBlock::Form::kZeros:
      return 1;
    case LosslessBlock::Form::kPlain:
      return in.size() < LosslessBlock::kSizeMax ? 0 : LosslessBlock::kSizeMax;
    case LosslessBlock::Form::kCoded:
      break;
    default:
      return 0;
  }
  if (in.size() < LosslessBlock::kExceptionsAt) return 0;
  const auto exceptions_count = std::to_integer<std::size_t>(in[2]);
  const std::size_t size = LosslessBlock::kExceptionsAt + exceptions_count;
  std::size_t found = 0;
  for (std::size_t j = 0; j < LosslessBlock::kWords; ++j) {
    const auto byte = [&in](std::size_t at) { return std::to_integer<std::uint32_t>(in[at]); };
    const std::size_t at = LosslessBlock::kWordsAt + 2 * j;
    const std::uint32_t word =
        byte(at) | byte(at + 1) << 8U | byte(LosslessBlock::kUpperWordsAt + j) << 16U;
    constexpr std::uint32_t kLowestBits = 011111111;  // of each code
    static_assert(LosslessBlock::kException == 7);
    found += static_cast<std::size_t>(std::popcount(word & word >> 1U & word >> 2U & kLowestBits));
  }
  return found == exceptions_count && in.size() >= size ? size : 0;
}

}  // namespace

bool FindLosslessBlocks(std::span<const std::byte> in, std::uint64_t count,
                        std::span<std::uint32_t> begins) {
  const std::uint64_t blocks = count / kCodecBlock;
  HR_CHECK(begins.size() >= LosslessBeginsCount(count) &&
               in.size() <= std::numeric_limits<std::uint32_t>::max(),
           begins.size(), count, in.size());
  std::size_t at = 0;
  for (std::uint64_t block = 0; block < blocks; ++block) {
    begins[block] = static_cast<std::uint32_t>(at);
    const std::size_t size = SizeOfBlock(in.subspan(at));
    if (size == 0) return false;
    at += size;
  }
  begins[blocks] = static_cast<std::uint32_t>(at);
  return in.size() - at == static_cast<std::size_t>(count % kCodecBlock) * sizeof(float);
}

void EncodeLossless(const float* values, std::uint64_t count, LosslessWriter& to) {
  // Only the last call may have had part of a block.
  HR_CHECK(to.count % kCodecBlock == 0, to.count, count);
  HR_CHECK(!to.fits || to.size <= to.size_max, to.size, to.size_max);
  HWY_DYNAMIC_DISPATCH(EncodeBlocksLossless)(values, count, to);
  HR_CHECK(!to.fits || to.size <= to.size_max, to.size, to.size_max);
}
void DecodeLossless(LosslessReader& from, std::uint64_t count, float* out) {
  const std::size_t before = from.in.size();
  HWY_DYNAMIC_DISPATCH(DecodeBlocksLossless)(from, count, out);
  HR_CHECK(from.in.size() <= before, from.in.size(), before);
}

}  // namespace headrace::transport
#endif
