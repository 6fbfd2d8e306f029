#include "tests/support/loopback/loopback_transport.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "ipc/base/check.h"
#include "tests/support/loopback/reference.h"
#include "transport/digest.h"
#include "transport/runs.h"

namespace headrace::transport {
namespace {

constexpr std::uint32_t Bit(Collective kind) { return 1U << static_cast<unsigned>(kind); }

// A seeded failure strikes at one of the first pieces, so that short transfers fail part-way too.
constexpr double kSeededFailurePieces = 4;

std::vector<std::uint64_t> DigestMembers(const Transfer& transfer) {
  std::vector<std::uint64_t> digests(transfer.members_count);
  const std::uint64_t piece = kDigestPieceSize / SizeOf(transfer.dtype);
  for (std::uint64_t begin = 0; begin < transfer.count; begin += piece) {
    const std::uint64_t end = std::min(transfer.count, begin + piece);
    for (std::uint32_t member = 0; member < transfer.members_count; ++member) {
      digests[member] += DigestPiece(transfer, member, begin, end);
    }
  }
  return digests;
}

}  // namespace

LoopbackTransport::LoopbackTransport(const LoopbackOptions& options)
    : options_(options),
      capabilities_{.name = "loopback",
                    .collectives = Bit(Collective::kAllReduce) | Bit(Collective::kBroadcast) |
                                   Bit(Collective::kReduceScatter) | Bit(Collective::kAllGather) |
                                   Bit(Collective::kBarrier) | Bit(Collective::kReduce),
                    .transfers_max = options.transfers_max,
                    .piece_size = options.piece_size,
                    .threads = 1,
                    .digests = true},
      random_(options.seed) {
  HR_CHECK(options.piece_size != 0 && options.piece_size % 8 == 0, options.piece_size);
}

PostResult LoopbackTransport::Post(const Transfer& transfer, TimeNs now) {
  HR_CHECK(transfer.members_count >= 1 && transfer.members_count <= kMembersMax,
           transfer.members_count);
  CheckMemory(transfer);
  if (busy_posts_ != 0) {
    --busy_posts_;
    return PostResult::kBusy;
  }
  if (queue_.size() >= options_.transfers_max) return PostResult::kBusy;
  if (Draw() < options_.busy_share) return PostResult::kBusy;
  if (Draw() < options_.failure_share) {
    Fail(transfer.token, options_.failure_code,
         static_cast<std::uint64_t>(Draw() * kSeededFailurePieces));
  }
  queue_.push_back(
      {.transfer = transfer, .posted_ns = now, .stretch = 1 + Draw() * options_.jitter_share});
  BeginHead();
  return PostResult::kAccepted;
}

void LoopbackTransport::Cancel(std::uint64_t token) {
  for (Open& open : queue_) {
    if (open.transfer.token == token) open.cancelled = true;
  }
}

void LoopbackTransport::Fail(std::uint64_t token, Code code, std::uint64_t pieces) {
  failures_.push_back({.token = token, .code = code, .pieces = pieces});
}

bool LoopbackTransport::DoWork(TimeNs now, std::vector<Completion>& completions) {
  ReportCancelled(now, completions);
  if (NextDue() > now) return false;
  Open& head = queue_.front();
  const TimeNs due = DueOf(head);
  const std::uint64_t end = PieceEnd(head);
  const bool last = end == head.transfer.count;
  if (const Code code = FailureOf(head, last); code != Code::kOk) {
    EndHead(code, due, completions);
    return NextDue() <= now;
  }
  if (!head.transfer.digest) ReferenceMove(head.transfer, head.done, end);
  head.done = end;
  ++head.pieces;
  if (last) EndHead(Code::kOk, due, completions);
  return NextDue() <= now;
}

TimeNs LoopbackTransport::NextDue() const {
  if (queue_.empty()) return kNever;
  const bool cancelled = std::ranges::any_of(queue_, [](const Open& o) { return o.cancelled; });
  return cancelled ? queue_.front().posted_ns : DueOf(queue_.front());
}

void LoopbackTransport::BeginHead() {
  if (queue_.empty() || queue_.front().begin_ns != kNever) return;
  queue_.front().begin_ns = std::max(queue_.front().posted_ns, link_free_ns_);
}

std::uint64_t LoopbackTransport::PieceEnd(const Open& open) const {
  const std::uint64_t piece = options_.piece_size / SizeOf(open.transfer.dtype);
  return std::min(open.transfer.count, open.done + piece);
}

// When the head's next piece ends.
TimeNs LoopbackTransport::DueOf(const Open& head) const {
  const auto bytes = static_cast<double>(PieceEnd(head) * SizeOf(head.transfer.dtype));
  const double line = static_cast<double>(options_.startup_ns) + bytes * options_.ns_per_byte;
  return head.begin_ns + static_cast<TimeNs>(std::llround(line * head.stretch));
}

Code LoopbackTransport::FailureOf(const Open& head, bool last) const {
  for (const Failure& failure : failures_) {
    if (failure.token == head.transfer.token && (failure.pieces <= head.pieces || last)) {
      return failure.code;
    }
  }
  return Code::kOk;
}

void LoopbackTransport::ReportCancelled(TimeNs now, std::vector<Completion>& completions) {
  while (!queue_.empty() && queue_.front().cancelled) EndHead(Code::kCancelled, now, completions);
  for (const Open& open : queue_) {
    if (!open.cancelled) continue;
    completions.push_back(
        {.token = open.transfer.token, .code = Code::kCancelled, .begin_ns = now, .end_ns = now});
  }
  std::erase_if(queue_, [](const Open& open) { return open.cancelled; });
}

void LoopbackTransport::EndHead(Code code, TimeNs end, std::vector<Completion>& completions) {
  const Open& head = queue_.front();
  const std::uint64_t token = head.transfer.token;
  // One that is cancelled before its turn begins and ends at the same time.
  completions.push_back(
      {.token = token, .code = code, .begin_ns = std::min(head.begin_ns, end), .end_ns = end});
  if (head.transfer.digest && code == Code::kOk) {
    ReportDigests(DigestMembers(head.transfer), completions.back());
  }
  std::erase_if(failures_, [&](const Failure& failure) { return failure.token == token; });
  link_free_ns_ = std::max(link_free_ns_, end);
  queue_.pop_front();
  BeginHead();
}

}  // namespace headrace::transport
