#include "transport/exchange/partition.h"

#include <algorithm>
#include <bit>

#include "ipc/base/check.h"

namespace headrace::transport {
namespace {

constexpr std::uint64_t RoundUp(std::uint64_t value, std::uint64_t step) {
  return (value + step - 1) / step * step;
}

}  // namespace

Partition::Partition(const CollectiveSpec& spec, Pattern pattern, std::uint64_t position,
                     std::uint32_t data_count, std::uint32_t servers_count,
                     std::size_t piece_size_max)
    : count_(spec.SentCount()) {
  HR_CHECK(piece_size_max >= kPieceAlignment && piece_size_max % kPieceAlignment == 0,
           piece_size_max);
  switch (pattern) {
    case Pattern::kScatter:
    case Pattern::kRing:
      owners_count_ = data_count;
      break;
    case Pattern::kServed:
      owners_begin_ = data_count;
      owners_count_ = servers_count;
      break;
    case Pattern::kFromRootByOwners:
      owners_count_ = std::max(data_count - 1, 1U);
      skipped_ = spec.root;
      break;
    case Pattern::kExchange:
    case Pattern::kDoubling:
    case Pattern::kToRoot:
    case Pattern::kFromRoot:
    case Pattern::kBarrier:
      break;
  }
  // Positions may grow in any of their digits, by powers of two too: all of them have a say.
  const std::uint64_t digits = (position & 0xFFFF) + (position >> 16 & 0xFFFF) +
                               (position >> 32 & 0xFFFF) + (position >> 48);
  // Each owner has pieces of a half, and the same ones of both halves.
  const bool half = IsHalf(spec.kind);
  turn_ = half ? 0 : static_cast<std::uint32_t>(digits % owners_count_);
  if (spec.factored()) CutLeftFactor(spec, piece_size_max);
  if (pattern == Pattern::kServed && spec.place > 0) {
    CutByPlace(spec, piece_size_max);
    return;
  }
  const std::uint64_t bytes = spec.SizeOfElements(count_);
  // Elements that are not taken apart, and what they take on their way.
  const std::uint64_t unit =
      HasBlocks(spec.codec) ? kCodecBlock : kPieceAlignment / SizeOf(spec.dtype);
  const std::size_t unit_size = spec.SizeOfElements(unit);
  const std::uint64_t wanted =
      RoundUp(bytes / (std::uint64_t{owners_count_} * kPiecesPerOwner), unit_size);
  const std::uint64_t each = RoundUp(bytes / owners_count_ + 1, unit_size);
  const std::uint64_t least =
      half ? std::min<std::uint64_t>(each, kSentPieceSizeMin) : kSentPieceSizeMin;
  const std::uint64_t size =
      std::min<std::uint64_t>(std::max<std::uint64_t>(wanted, least), piece_size_max);
  piece_count_ = size / unit_size * unit;
  if (HasBlocks(spec.codec)) piece_count_ = std::min(piece_count_, kEncodedPieceCountMax);
  HR_CHECK(piece_count_ > 0, piece_size_max, unit_size);
  // A transfer of nothing is still a message, so that nodes find out when they disagree.
  const std::uint64_t pieces = std::max<std::uint64_t>(RoundUp(count_, piece_count_) / piece_count_,
                                                       half ? owners_count_ : 1);
  HR_CHECK(pieces < UINT32_MAX - 2 * kNodesMax, pieces);
  pieces_count_ = left_pieces_count_ + static_cast<std::uint32_t>(pieces);
}

void Partition::CutByPlace(const CollectiveSpec& spec, std::size_t piece_size_max) {
  piece_count_ =
      std::min<std::uint64_t>(kServedPieceCountMax, std::bit_floor(piece_size_max / sizeof(float)));
  const std::uint64_t place = spec.place - 1;
  first_lacks_ = place % piece_count_;
  turn_ = static_cast<std::uint32_t>(place / piece_count_ % owners_count_);
  const std::uint64_t pieces =
      std::max<std::uint64_t>(RoundUp(first_lacks_ + count_, piece_count_) / piece_count_, 1);
  HR_CHECK(pieces < UINT32_MAX - 2 * kNodesMax, pieces);
  pieces_count_ = static_cast<std::uint32_t>(pieces);
}

// As many rows as the matrix has in what may be encoded in one go.
void Partition::CutLeftFactor(const CollectiveSpec& spec, std::size_t piece_size_max) {
  const std::uint64_t rank = spec.codec.parameter;
  const std::uint64_t most = piece_size_max / (rank * sizeof(float));
  HR_CHECK(most > 0, piece_size_max, rank);
  const std::uint64_t rows =
      std::max<std::uint64_t>(1, std::min(most, kEncodedPieceCountMax / (spec.count / spec.rows)));
  const std::uint64_t pieces = RoundUp(spec.rows, rows) / rows;
  HR_CHECK(pieces < UINT32_MAX / 2, pieces);
  left_pieces_count_ = static_cast<std::uint32_t>(pieces);
  left_piece_count_ = rows * rank;
  left_count_ = spec.rows * rank;
  count_ -= left_count_;
}

Partition::Range Partition::PieceRange(std::uint32_t piece) const {
  if (piece < left_pieces_count_) {
    const std::uint64_t begin = piece * left_piece_count_;
    return {.begin = begin, .count = std::min(left_piece_count_, left_count_ - begin)};
  }
  const std::uint64_t number = piece - left_pieces_count_;
  const std::uint64_t lacks = number == 0 ? 0 : first_lacks_;
  const std::uint64_t begin = std::min(number * piece_count_ - lacks, count_);
  const std::uint64_t end = std::min((number + 1) * piece_count_ - first_lacks_, count_);
  return {.begin = left_count_ + begin, .count = end - begin};
}

std::uint32_t Partition::Owner(std::uint32_t piece) const {
  const std::uint32_t owner = owners_begin_ + (piece % owners_count_ + turn_) % owners_count_;
  return owner >= skipped_ ? owner + 1 : owner;
}

std::uint32_t Partition::NextOwned(std::uint32_t piece, std::uint32_t member) const {
  const std::uint32_t end = piece + owners_count_;
  while (piece < end && Owner(piece) != member) ++piece;
  return piece < end ? piece : pieces_count_;
}

}  // namespace headrace::transport
