// The transfer that the lane's thread and its worker pool work on together: a cursor that hands out
// pieces.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/transport.h"

namespace headrace::transport {

// The largest piece, in bytes of one member's memory: short enough that a lane looks up from its
// work every few tens of microseconds, long enough that taking it costs nothing.
inline constexpr std::size_t kPieceSizeMax = std::size_t{128} << 10;
// Towards the end pieces get smaller, so that no thread waits long for another's last one.
inline constexpr std::size_t kPieceSizeMin = std::size_t{16} << 10;

class Piecework {
 public:
  // Lane's thread, while nobody else works on it. The transfer stays valid until the next Open.
  void Open(const Transfer& transfer, std::uint32_t threads);

  // Any thread: takes the next piece and does it. False when none was left.
  bool DoPiece();

  // Any thread: hands out no further piece. Returns whether any was left.
  bool Stop();

  bool HasPieces() const { return cursor_.load(std::memory_order_relaxed) < count_; }

  // Writes the digest of a transfer that has one into its completion, once all pieces are done.
  void Report(Completion& completion) const;

 private:
  const Transfer* transfer_ = nullptr;
  std::uint64_t count_ = 0;
  std::uint64_t shares_ = 1;     // a piece is at most this part of what remains
  std::uint64_t piece_max_ = 1;  // in elements
  std::uint64_t piece_min_ = 1;
  std::array<std::atomic<std::uint64_t>, kMembersMax> digests_{};  // so far, of each member
  // On a cache line of its own: all threads write it. Relaxed throughout, since it only divides the
  // work; the worker pool's mutex orders the work itself before the completion.
  alignas(64) std::atomic<std::uint64_t> cursor_{0};
};

}  // namespace headrace::transport
