#include "transport/shm/shm_transport.h"

#include <algorithm>

#include "ipc/base/check.h"
#include "transport/runs.h"

namespace headrace::transport {
namespace {

// From here on, in bytes over all members, waking the worker pool pays for itself. See the README.
constexpr std::size_t kLargeSize = std::size_t{2} << 20;

constexpr std::uint32_t Bit(Collective kind) { return 1U << static_cast<unsigned>(kind); }

Capabilities MakeCapabilities(std::uint32_t threads) {
  return {.name = "shm",
          .collectives = Bit(Collective::kAllReduce) | Bit(Collective::kBroadcast) |
                         Bit(Collective::kReduceScatter) | Bit(Collective::kAllGather) |
                         Bit(Collective::kBarrier) | Bit(Collective::kReduce),
          .transfers_max = ShmTransport::kTransfersMax,
          .piece_size = kPieceSizeMax,
          .threads = threads,
          .digests = true};
}

}  // namespace

ShmTransport::ShmTransport(std::uint32_t threads, Waker& waker)
    : capabilities_(MakeCapabilities(threads)), slots_(kTransfersMax), pool_(threads - 1, waker) {
  HR_CHECK(threads >= 1, threads);
  for (std::uint32_t i = kTransfersMax; i > 0; --i) free_.push_back(i - 1);
  queue_.reserve(kTransfersMax);
}

PostResult ShmTransport::Post(const Transfer& transfer, TimeNs) {
  HR_CHECK(transfer.members_count >= 1 && transfer.members_count <= kMembersMax,
           transfer.members_count);
  HR_CHECK(capabilities_.Supports(transfer.kind), static_cast<int>(transfer.kind));
  CheckMemory(transfer);
  if (free_.empty()) return PostResult::kBusy;
  const std::uint32_t index = free_.back();
  free_.pop_back();
  slots_[index] = {.transfer = transfer};
  queue_.push_back(index);
  HR_CHECK(free_.size() + queue_.size() == kTransfersMax, free_.size(), queue_.size());
  return PostResult::kAccepted;
}

void ShmTransport::Cancel(std::uint64_t token) {
  const auto found =
      std::ranges::find(queue_, token, [&](auto index) { return slots_[index].transfer.token; });
  if (found == queue_.end() || slots_[*found].cancelled) return;
  if (begun_ && found == queue_.begin()) {
    // The last piece may have been handed out already: then this one ends as it would have.
    slots_[*found].cancelled = work_.Stop();
    return;
  }
  slots_[*found].cancelled = true;
  ++cancelled_count_;
}

bool ShmTransport::DoWork(TimeNs now, std::vector<Completion>& completions) {
  if (cancelled_count_ != 0) ReportCancelled(now, completions);
  if (queue_.empty()) return false;
  Slot& head = slots_[queue_.front()];
  if (!begun_) Begin(head);
  work_.DoPiece();
  if (work_.HasPieces()) return true;
  if (shared_ && !pool_.Withdraw()) return false;
  completions.push_back({.token = head.transfer.token,
                         .code = head.cancelled ? Code::kCancelled : Code::kOk,
                         .begin_ns = head.begin_ns,
                         .end_ns = MonotonicNow()});
  if (head.transfer.digest) work_.Report(completions.back());
  free_.push_back(queue_.front());
  queue_.erase(queue_.begin());
  HR_CHECK(free_.size() + queue_.size() == kTransfersMax, free_.size(), queue_.size());
  begun_ = false;
  return !queue_.empty();
}

// A transfer that was cancelled before it began does not wait for its turn.
void ShmTransport::ReportCancelled(TimeNs now, std::vector<Completion>& completions) {
  std::size_t reported = 0;
  for (std::size_t i = begun_ ? 1 : 0; i < queue_.size();) {
    const std::uint32_t index = queue_[i];
    if (!slots_[index].cancelled) {
      ++i;
      continue;
    }
    completions.push_back({.token = slots_[index].transfer.token,
                           .code = Code::kCancelled,
                           .begin_ns = now,
                           .end_ns = now});
    free_.push_back(index);
    queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(i));
    ++reported;
  }
  HR_CHECK(reported == cancelled_count_, reported, cancelled_count_);
  cancelled_count_ = 0;
}

void ShmTransport::Begin(Slot& head) {
  HR_CHECK(!begun_ && !work_.HasPieces(), head.transfer.token);
  begun_ = true;
  head.begin_ns = MonotonicNow();
  shared_ = IsLarge(head.transfer);
  work_.Open(head.transfer, shared_ ? capabilities_.threads : 1);
  if (shared_) pool_.Offer(work_, queue_.size() > 1);
}

bool ShmTransport::IsLarge(const Transfer& transfer) const {
  return capabilities_.threads > 1 && (transfer.members_count > 1 || transfer.digest) &&
         transfer.Bytes() * transfer.members_count >= kLargeSize;
}

}  // namespace headrace::transport
