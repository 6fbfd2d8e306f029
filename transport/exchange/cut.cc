#include "transport/exchange/cut.h"

#include <algorithm>

#include "ipc/base/check.h"

namespace headrace::transport {
namespace {

constexpr std::uint64_t RoundUp(std::uint64_t value, std::uint64_t step) {
  return (value + step - 1) / step * step;
}

}  // namespace

Cut::Cut(const Shape& shape, Pattern pattern, std::uint64_t position, std::uint32_t data_count,
         std::uint32_t servers_count, std::size_t piece_size_max, std::span<const Run> runs,
         std::uint64_t skip)
    : start_(shape.dtype, shape.count, runs, skip), walk_(start_) {
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
      skipped_ = shape.root;
      break;
    case Pattern::kExchange:
    case Pattern::kDoubling:
    case Pattern::kToRoot:
    case Pattern::kFromRoot:
    case Pattern::kBarrier:
      break;
  }
  turn_ = static_cast<std::uint32_t>(position % owners_count_);
  const std::uint64_t bytes = shape.Bytes();
  const std::uint64_t wanted =
      RoundUp(bytes / (std::uint64_t{owners_count_} * kPiecesPerOwner), kPieceAlignment);
  const std::uint64_t size =
      std::min<std::uint64_t>(std::max<std::uint64_t>(wanted, kSentPieceSizeMin), piece_size_max);
  piece_count_ = size / SizeOf(shape.dtype);
  const std::uint64_t pieces_max = shape.count / piece_count_ + 1 + 2 * runs.size();
  HR_CHECK(pieces_max < UINT32_MAX - 2 * kNodesMax, pieces_max);
  for (RunWalk walk = start_; !walk.over(); walk.Next()) pieces_count_ += PiecesOf(walk.stretch());
  // A transfer of nothing is still a message, so that nodes find out when they disagree.
  pieces_count_ = std::max(pieces_count_, 1U);
}

std::uint32_t Cut::PiecesOf(const Stretch& stretch) const {
  const std::uint64_t after_last = (stretch.end - 1) / piece_count_ + 1;
  return static_cast<std::uint32_t>(after_last - stretch.begin / piece_count_);
}

Cut::Range Cut::PieceRange(std::uint32_t piece) {
  if (start_.over()) return {};
  if (piece < first_) {
    walk_ = start_;
    first_ = 0;
  }
  for (std::uint32_t here = PiecesOf(walk_.stretch()); piece - first_ >= here;
       here = PiecesOf(walk_.stretch())) {
    first_ += here;
    walk_.Next();
    HR_CHECK(!walk_.over(), piece, pieces_count_);
  }
  const Stretch& stretch = walk_.stretch();
  const std::uint64_t cell = stretch.begin / piece_count_ + (piece - first_);
  const std::uint64_t begin = std::max(stretch.begin, cell * piece_count_);
  return {.begin = begin,
          .count = std::min(stretch.end, (cell + 1) * piece_count_) - begin,
          .offset = walk_.OffsetOf(begin)};
}

std::uint32_t Cut::Owner(std::uint32_t piece) {
  const auto turn =
      static_cast<std::uint32_t>(PieceRange(piece).begin / piece_count_ % owners_count_);
  const std::uint32_t owner = owners_begin_ + (turn + turn_) % owners_count_;
  return owner >= skipped_ ? owner + 1 : owner;
}

std::uint32_t Cut::NextOwned(std::uint32_t piece, std::uint32_t member) {
  const std::uint32_t end = std::min(piece + owners_count_, pieces_count_);
  while (piece < end && Owner(piece) != member) ++piece;
  return piece < end ? piece : pieces_count_;
}

}  // namespace headrace::transport
