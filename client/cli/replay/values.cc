#include "client/cli/replay/values.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace headrace::replay {
namespace {

// The pattern is repeated so often in memory that copying it is fast.
constexpr std::size_t kRepeats = 64;

int MantissaBits(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return 53;
    case DType::kFloat32:
      return 24;
    case DType::kFloat16:
      return 11;
    case DType::kBFloat16:
      return 8;
    default:
      return 0;
  }
}

template <typename T>
void Append(std::vector<std::byte>& bytes, T value) {
  const auto* begin = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), begin, begin + sizeof value);
}

// `value` is 0 or at least 1/2, and representable.
std::uint16_t Float16Bits(float value) {
  if (value == 0) return 0;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t exponent = (bits >> 23) - 127 + 15;
  return static_cast<std::uint16_t>(exponent << 10 | (bits >> 13 & 0x3ff));
}

void AppendAs(DType dtype, double value, std::vector<std::byte>& bytes) {
  const auto single = static_cast<float>(value);
  switch (dtype) {
    case DType::kFloat64:
      return Append(bytes, value);
    case DType::kFloat16:
      return Append(bytes, Float16Bits(single));
    case DType::kBFloat16:
      return Append(bytes, static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(single) >> 16));
    default:
      return Append(bytes, single);
  }
}

}  // namespace

std::optional<Values> Values::For(DType dtype, std::uint32_t world_size) {
  for (const std::uint32_t period : {61U, 7U, 3U}) {
    // The average may have a half, and sums of averages as well: one bit more than the largest sum.
    const double most = 2.0 * world_size * (period - 1 + (world_size - 1) / 2.0);
    const auto limit = static_cast<double>(std::uint64_t{1} << MantissaBits(dtype));
    if (most <= limit) return Values(dtype, world_size, period);
  }
  return std::nullopt;
}

std::vector<std::byte> Values::Pattern(std::size_t tensor, std::uint64_t iteration,
                                       double more) const {
  std::vector<std::byte> bytes;
  bytes.reserve(kRepeats * period_ * SizeOf(dtype_));
  const std::uint64_t start = 7 * tensor + 13 * iteration;
  for (std::size_t i = 0; i < kRepeats * period_; ++i) {
    AppendAs(dtype_, static_cast<double>((start + i) % period_) + more, bytes);
  }
  return bytes;
}

void Values::Fill(std::span<std::byte> gradient, std::size_t tensor, std::uint64_t iteration,
                  std::uint32_t rank) const {
  const std::vector<std::byte> pattern = Pattern(tensor, iteration, rank);
  for (std::size_t at = 0; at < gradient.size(); at += pattern.size()) {
    std::memcpy(gradient.data() + at, pattern.data(),
                std::min(pattern.size(), gradient.size() - at));
  }
}

std::optional<std::size_t> Values::FindWrong(std::span<const std::byte> gradient,
                                             std::size_t tensor, std::uint64_t iteration) const {
  const std::vector<std::byte> pattern = Pattern(tensor, iteration, (world_size_ - 1) / 2.0);
  for (std::size_t at = 0; at < gradient.size(); at += pattern.size()) {
    const std::size_t size = std::min(pattern.size(), gradient.size() - at);
    if (std::memcmp(gradient.data() + at, pattern.data(), size) == 0) continue;
    const auto wrong = std::mismatch(pattern.begin(), pattern.begin() + static_cast<long>(size),
                                     gradient.begin() + static_cast<long>(at));
    return (at + static_cast<std::size_t>(wrong.first - pattern.begin())) / SizeOf(dtype_);
  }
  return std::nullopt;
}

}  // namespace headrace::replay
