// How a transfer is cut into pieces, and who owns them. Pure, and the same on every node.
//
// A transfer is cut at every multiple of the piece's size, and at every border between two runs of
// its memory, so that each piece is one message from one place. What lies between two multiples has
// one owner, however many runs it is of: each owner gets its share of the bytes, and not of the
// pieces.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/exchange/script.h"
#include "transport/exchange/shape.h"
#include "transport/runs.h"

namespace headrace::transport {

// Pieces begin at multiples of this, in bytes.
inline constexpr std::size_t kPieceAlignment = 64;
// A transfer is cut so that each owner has this many pieces to overlap, unless they get smaller
// than the smallest that is worth its message.
inline constexpr std::uint32_t kPiecesPerOwner = 4;
inline constexpr std::size_t kSentPieceSizeMin = std::size_t{16} << 10;

class Cut {
 public:
  struct Range {
    std::uint64_t begin = 0;  // elements
    std::uint64_t count = 0;
    std::uint64_t offset = 0;  // of the first, in bytes behind the pointer to the memory
  };

  Cut() = default;
  // `piece_size_max` is in bytes, a multiple of kPieceAlignment. Memory of several runs is not for
  // servers, which know nothing of it.
  Cut(const Shape& shape, Pattern pattern, std::uint64_t position, std::uint32_t data_count,
      std::uint32_t servers_count, std::size_t piece_size_max, std::span<const Run> runs = {},
      std::uint64_t skip = 0);

  std::uint32_t pieces_count() const { return pieces_count_; }
  // These walk along the runs: cheap for a piece that is not before the one asked for last.
  Range PieceRange(std::uint32_t piece);
  // The owner's member number; 0 where the pattern has no owners.
  std::uint32_t Owner(std::uint32_t piece);
  // The first piece from `piece` on that `member` owns; pieces_count() or more where there is none.
  // Of memory of one run.
  std::uint32_t NextOwned(std::uint32_t piece, std::uint32_t member);

 private:
  std::uint32_t PiecesOf(const Stretch& stretch) const;

  RunWalk start_;
  RunWalk walk_;                   // at the piece asked for last
  std::uint32_t first_ = 0;        // the first piece of the stretch it is at
  std::uint64_t piece_count_ = 1;  // elements between two cuts
  std::uint32_t pieces_count_ = 0;
  // Owners take turns. Each transfer begins with another, lest one owner gets all small transfers.
  std::uint32_t owners_count_ = 1;
  std::uint32_t turn_ = 0;
  std::uint32_t owners_begin_ = 0;
  std::uint32_t skipped_ = UINT32_MAX;  // the root of a broadcast owns nothing
};

}  // namespace headrace::transport
