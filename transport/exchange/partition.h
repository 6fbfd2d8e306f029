// Cuts a transfer into pieces and assigns their owners. Pure, and the same on every node.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/exchange/collective_schedule.h"
#include "transport/exchange/collective_spec.h"

namespace headrace::transport {

// Pieces begin at multiples of this, in bytes.
inline constexpr std::size_t kPieceAlignment = 64;
// A transfer is cut so that each owner has this many pieces to overlap, unless they get smaller
// than the smallest that is worth its message.
inline constexpr std::uint32_t kPiecesPerOwner = 4;
inline constexpr std::size_t kSentPieceSizeMin = std::size_t{16} << 10;
// A piece of an encoded transfer has no more elements, however few bytes they take: encoding a
// piece is done in one go, and others wait for it.
inline constexpr std::uint64_t kEncodedPieceCountMax = std::uint64_t{256} << 10;

// Where servers sum elements that have places (Transfer::place), a piece ends where one of so many
// of these does, or of as many as its messages have room for: each server has every so many-th of
// them, whatever transfers and codecs they come in.
inline constexpr std::uint64_t kServedPieceCountMax = std::uint64_t{16} << 10;

class Partition {
 public:
  struct Range {
    std::uint64_t begin = 0;  // elements
    std::uint64_t count = 0;
  };

  Partition() = default;
  // A matrix that is factored is cut into pieces of its left factor, whole rows of it, and then of
  // its right one.
  // `piece_size_max` is in bytes, a multiple of kPieceAlignment.
  Partition(const CollectiveSpec& spec, Pattern pattern, std::uint64_t position,
            std::uint32_t data_count, std::uint32_t servers_count, std::size_t piece_size_max);

  // Pieces of the left factor; 0 where nothing is factored.
  std::uint32_t left_pieces_count() const { return left_pieces_count_; }
  // At least one for each owner in a reduce_scatter or all_gather, however few elements there are.
  std::uint32_t pieces_count() const { return pieces_count_; }
  Range PieceRange(std::uint32_t piece) const;
  // The owner's member number; 0 where the pattern has no owners.
  std::uint32_t Owner(std::uint32_t piece) const;
  // The first piece from `piece` on that `member` owns; pieces_count() or more where there is none.
  std::uint32_t NextOwned(std::uint32_t piece, std::uint32_t member) const;

 private:
  void CutLeftFactor(const CollectiveSpec& spec, std::size_t piece_size_max);
  void CutByPlace(const CollectiveSpec& spec, std::size_t piece_size_max);

  std::uint64_t left_count_ = 0;  // elements of a left factor, and of its pieces but the last
  std::uint64_t left_piece_count_ = 0;
  std::uint32_t left_pieces_count_ = 0;
  std::uint64_t count_ = 0;        // of the rest, which is all where nothing is factored
  std::uint64_t piece_count_ = 1;  // elements of all its pieces but the last, and maybe the first
  std::uint64_t first_lacks_ = 0;  // elements, which lie before the transfer
  std::uint32_t pieces_count_ = 0;
  // Owners take turns. Each transfer begins with another, lest one owner gets all small transfers.
  std::uint32_t owners_count_ = 1;
  std::uint32_t turn_ = 0;
  std::uint32_t owners_begin_ = 0;
  std::uint32_t skipped_ = UINT32_MAX;  // the root of a broadcast owns nothing
};

}  // namespace headrace::transport
