#include "tests/contract/members.h"

#include <algorithm>
#include <random>

#include "tests/contract/patterns.h"

namespace headrace::transport {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kGuardSize = 128;
constexpr std::byte kGuard{0xA5};

bool AllGuards(const std::byte* begin, const std::byte* end) {
  return std::all_of(begin, end, [](std::byte byte) { return byte == kGuard; });
}

}  // namespace

Members::Members(DType dtype, std::uint64_t count, std::uint32_t members_count)
    : dtype_(dtype), count_(count), size_(static_cast<std::size_t>(count) * SizeOf(dtype)) {
  for (std::uint32_t i = 0; i < members_count; ++i) {
    const std::size_t shift = i % 5 * SizeOf(dtype);
    auto& buffer = buffers_.emplace_back(2 * kGuardSize + kAlignment + shift + size_, kGuard);
    const auto address = reinterpret_cast<std::uintptr_t>(buffer.data()) + kGuardSize;
    const std::size_t to_boundary = (kAlignment - address % kAlignment) % kAlignment;
    starts_.push_back(buffer.data() + kGuardSize + to_boundary + shift);
  }
}

void Members::Fill(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::byte* start : starts_) {
    const auto elements = AwkwardElements(dtype_, count_, random);
    std::ranges::copy(elements, start);
  }
}

void Members::Describe(Transfer& transfer) const {
  transfer.dtype = dtype_;
  transfer.count = count_;
  transfer.members_count = static_cast<std::uint32_t>(starts_.size());
  std::ranges::copy(starts_, transfer.members.begin());
}

Members Members::Copy() const {
  Members copy(dtype_, count_, static_cast<std::uint32_t>(starts_.size()));
  for (std::size_t i = 0; i < starts_.size(); ++i) {
    std::copy_n(starts_[i], size_, copy.starts_[i]);
  }
  return copy;
}

std::vector<std::byte> Members::Content(std::uint32_t index) const {
  return {starts_[index], starts_[index] + size_};
}

std::vector<std::vector<std::byte>> Members::Contents() const {
  std::vector<std::vector<std::byte>> contents;
  for (std::uint32_t i = 0; i < starts_.size(); ++i) contents.push_back(Content(i));
  return contents;
}

bool Members::GuardsAreWhole() const {
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    const std::byte* begin = buffers_[i].data();
    if (!AllGuards(begin, starts_[i])) return false;
    if (!AllGuards(starts_[i] + size_, begin + buffers_[i].size())) return false;
  }
  return true;
}

}  // namespace headrace::transport
