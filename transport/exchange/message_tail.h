// What a node sends a server behind the bytes of a piece: of what gradients the elements are, so
// that the server keeps what it leaves out of their sum for the next one, and from what the codec's
// chance follows. Equal on all nodes, but that a node without residuals names no runs.
//
//   runs_count times   offset and count of a run, 8 bytes each: elements in the memory of
//   residuals,
//                      which lies as the nodes' does; together as many as the piece has
//   seed               8 bytes
//   runs_count         4 bytes, then 4 bytes of zeros
//
// Numbers are in the machine's byte order, as those of the header are. Read from the network:
// everything is checked.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "transport/exchange/partition.h"
#include "transport/network.h"
#include "transport/runs.h"

namespace headrace::transport {

inline constexpr std::size_t kTailSizeMin = 16;
inline constexpr std::size_t kTailRunSize = 16;
inline constexpr std::size_t kTailSizeMax = kTailSizeMin + kServedRunsMax * kTailRunSize;
static_assert(kTailSizeMax == 4096);

struct MessageTail {
  std::uint64_t seed = 0;
  std::uint32_t runs_count = 0;
  std::array<Run, kServedRunsMax> runs{};

  std::span<const Run> Runs() const { return {runs.data(), runs_count}; }
  std::size_t Size() const { return kTailSizeMin + runs_count * kTailRunSize; }
};

// Writes the tail and returns its size. `walk` is over the transfer's residual, before the end of
// the stretch that holds the first element of `range`; without `keeps` the tail has no runs.
std::size_t WriteTail(std::uint64_t seed, const RunWalk& walk, const Partition::Range& range,
                      bool keeps, std::byte* out);

// The tail at the end of a message of a piece of `count` elements; nothing where it makes no sense.
std::optional<MessageTail> ReadTail(std::span<const std::byte> message, std::uint64_t count);

// Whether a message with so many bytes behind those of its piece may end in a tail.
constexpr bool MayBeTail(std::size_t size) {
  return size >= kTailSizeMin && size <= kTailSizeMax && (size - kTailSizeMin) % kTailRunSize == 0;
}

}  // namespace headrace::transport
