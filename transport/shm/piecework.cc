#include "transport/shm/piecework.h"

#include <algorithm>
#include <span>

#include "ipc/base/check.h"
#include "transport/digest.h"
#include "transport/shm/move.h"

namespace headrace::transport {

void Piecework::Open(const Transfer& transfer, std::uint32_t threads) {
  HR_CHECK(!HasPieces() && threads >= 1, count_, threads);
  transfer_ = &transfer;
  count_ = transfer.count;
  // Twice the threads: the rest after a thread took its piece still feeds all the others.
  shares_ = threads == 1 ? 1 : 2 * std::uint64_t{threads};
  piece_max_ = kPieceSizeMax / SizeOf(transfer.dtype);
  piece_min_ = kPieceSizeMin / SizeOf(transfer.dtype);
  if (transfer.digest) {
    piece_max_ = kDigestPieceSize / SizeOf(transfer.dtype);
    piece_min_ = piece_max_;  // all of one size: DigestPiece
    for (auto& digest : digests_) digest.store(0, std::memory_order_relaxed);
  }
  cursor_.store(0, std::memory_order_relaxed);
}

bool Piecework::DoPiece() {
  std::uint64_t begin = cursor_.load(std::memory_order_relaxed);
  std::uint64_t end = 0;
  do {
    if (begin >= count_) return false;
    // Multiples of the smallest piece keep the borders on the cache lines' borders.
    const std::uint64_t unit = shares_ * piece_min_;
    const std::uint64_t share = (count_ - begin + unit - 1) / unit * piece_min_;
    end = std::min(count_, begin + std::clamp(share, piece_min_, piece_max_));
  } while (!cursor_.compare_exchange_weak(begin, end, std::memory_order_relaxed));
  if (!transfer_->digest) {
    MoveRange(*transfer_, begin, end);
    return true;
  }
  for (std::uint32_t member = 0; member < transfer_->members_count; ++member) {
    const std::uint64_t piece = DigestPiece(*transfer_, member, begin, end);
    digests_[member].fetch_add(piece, std::memory_order_relaxed);
  }
  return true;
}

void Piecework::Report(Completion& completion) const {
  std::array<std::uint64_t, kMembersMax> digests{};
  for (std::uint32_t member = 0; member < transfer_->members_count; ++member) {
    digests[member] = digests_[member].load(std::memory_order_relaxed);
  }
  ReportDigests(std::span(digests).first(transfer_->members_count), completion);
}

bool Piecework::Stop() { return cursor_.exchange(count_, std::memory_order_relaxed) < count_; }

}  // namespace headrace::transport
