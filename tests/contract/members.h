// The memory of a transfer's members, with guards before and after each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/transport.h"

namespace headrace::transport {

// All that a transfer may be of.
inline constexpr DType kDTypes[] = {DType::kFloat32,  DType::kFloat64, DType::kFloat16,
                                    DType::kBFloat16, DType::kInt32,   DType::kInt64,
                                    DType::kUInt8};
inline constexpr Reduction kReductions[] = {Reduction::kSum, Reduction::kAverage, Reduction::kMin,
                                            Reduction::kMax, Reduction::kProduct};

class Members {
 public:
  // `members_count` members of `count` elements each. Member i starts i % 5 elements after a
  // boundary of 64 bytes, so that neither vectors nor members are aligned to each other.
  Members(DType dtype, std::uint64_t count, std::uint32_t members_count);

  Members(Members&&) = default;  // the buffers stay where they are

  // Fills every member with awkward elements, the same ones for the same seed.
  void Fill(std::uint64_t seed);

  // Points the transfer at this memory and sets its dtype, count and members.
  void Describe(Transfer& transfer) const;

  // Other memory with the same content.
  Members Copy() const;

  std::byte* Member(std::uint32_t index) const { return starts_[index]; }
  std::uint64_t count() const { return count_; }
  std::vector<std::byte> Content(std::uint32_t index) const;
  std::vector<std::vector<std::byte>> Contents() const;

  // Whether nothing was written before or after any member.
  bool GuardsAreWhole() const;

 private:
  DType dtype_;
  std::uint64_t count_;
  std::size_t size_;  // of one member, in bytes
  std::vector<std::vector<std::byte>> buffers_;
  std::vector<std::byte*> starts_;
};

}  // namespace headrace::transport
