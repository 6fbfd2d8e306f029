#include "transport/nccl/nccl_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::transport {

NcclQueue::NcclQueue(NcclGroups& groups, std::span<const NcclLaunchStream> launch_streams,
                     const NcclQueueOptions& options)
    : groups_(groups),
      launch_streams_(launch_streams.begin(), launch_streams.end()),
      options_(options),
      open_(options.transfers_max) {
  calls_.reserve(kCallsMax);
}

Result<std::unique_ptr<NcclQueue>> NcclQueue::Make(NcclGroups& groups,
                                                   std::span<const NcclLaunchStream> launch_streams,
                                                   const NcclQueueOptions& options) {
  HR_CHECK(options.transfers_max > 0 && options.piece_size > 0 && !launch_streams.empty());
  // One thread that made the calls of several ranks in turn would have to group them.
  HR_CHECK(options.threads_library || launch_streams.size() == 1, launch_streams.size());
  std::unique_ptr<NcclQueue> queue(new NcclQueue(groups, launch_streams, options));
  for (std::size_t i = 0; i < kPiecesMax * launch_streams.size(); ++i) {
    Result<CudaEvent> event = CreateEvent(*launch_streams[i % launch_streams.size()].context);
    if (!event) return event.error();
    queue->events_.push_back(std::move(event).value());
  }
  for (std::size_t i = 0; i < launch_streams.size(); ++i) {
    queue->launchers_.push_back(
        std::make_unique<NcclLauncher>(options.threads_library, kCallsMax / kMembersMax));
  }
  return queue;
}

// All at once, since each may take its time.
NcclQueue::~NcclQueue() {
  while (piece_first_ != piece_last_) DropFirstPiece();
  for (const auto& launcher : launchers_) launcher->Stop();
}

CudaEvent& NcclQueue::EventOf(std::uint64_t piece, std::uint32_t launch_stream) {
  return events_[piece % kPiecesMax * launch_streams_.size() + launch_stream];
}

bool NcclQueue::Has(std::uint64_t token) const {
  for (std::uint64_t i = first_; i != last_; ++i) {
    if (At(i).transfer.token == token) return true;
  }
  return false;
}

bool NcclQueue::Uses(const NcclGroup& group) const {
  for (std::uint64_t i = piece_first_; i != piece_last_; ++i) {
    if (pieces_[i % kPiecesMax].group == &group) return true;
  }
  return false;
}

bool NcclQueue::AnyLost() const {
  for (std::uint64_t i = piece_first_; i != piece_last_; ++i) {
    if (pieces_[i % kPiecesMax].lost) return true;
  }
  return false;
}

void NcclQueue::Add(const Transfer& transfer, std::optional<Error> error) {
  HR_CHECK(HasRoom());
  if (!error && broken_) error = broken_;
  At(last_) = {.transfer = transfer, .walk = RunWalk(transfer), .error = std::move(error)};
  ++last_;
}

void NcclQueue::Cancel(std::uint64_t token, TimeNs now) {
  for (std::uint64_t i = first_; i != last_; ++i) {
    Open& open = At(i);
    if (open.transfer.token == token && open.cancelled_ns == kNever) open.cancelled_ns = now;
  }
}

void NcclQueue::CancelAll(TimeNs now) {
  for (std::uint64_t i = first_; i != last_; ++i) {
    At(i).cancelled_ns = std::min(At(i).cancelled_ns, now);
  }
}

void NcclQueue::FailAll(const Error& error, TimeNs now) {
  FollowLaunches(now);  // what NCCL has launched gets its mark while its rank may still be asked
  for (std::uint64_t i = first_; i != last_; ++i) Fail(At(i), error);
  for (std::uint64_t i = piece_first_; i != piece_last_; ++i) {
    const Piece& piece = PieceAt(i);
    if (!piece.lost) Lose(*piece.group, error, now);
  }
}

bool NcclQueue::Step(TimeNs now, std::vector<Completion>& completions) {
  FollowLaunches(now);
  FollowPieces(now);
  FollowLost(now);
  Launch(now);
  EndTransfers(now, completions);
  return !empty();
}

// The first cause counts.
void NcclQueue::Fail(Open& open, const Error& error) {
  if (!open.error) open.error = error;
}

// Everything of the group that is under way ends with the error, once its streams have passed it.
void NcclQueue::Lose(NcclGroup& group, const Error& error, TimeNs now) {
  for (std::uint64_t i = piece_first_; i != piece_last_; ++i) {
    Piece& piece = PieceAt(i);
    if (piece.group != &group) continue;
    piece.lost = true;
    Fail(At(piece.open), error);
  }
  abort_deadline_ = std::min(abort_deadline_, now + options_.abort_timeout_ns);
  group.Abort();
  groups_.Lost(group, error);
}

// What the launchers have done since.
void NcclQueue::FollowLaunches(TimeNs now) {
  for (std::uint64_t i = piece_first_; i != piece_last_; ++i) {
    Piece& piece = PieceAt(i);
    if (piece.recorded || piece.lost) continue;
    const Result<bool> launched = IsLaunched(piece);
    if (!launched) return Lose(*piece.group, launched.error(), now);
    piece.recorded = *launched;
  }
}

// Whether no launcher has anything of it left.
bool NcclQueue::HasLaunched(Piece& piece) {
  const std::vector<NcclLocalRank>& local_ranks = piece.group->local_ranks();
  bool all = true;
  for (std::size_t local_rank = 0; local_rank < local_ranks.size(); ++local_rank) {
    all = LauncherOf(local_ranks[local_rank]).IsDone(piece.launches[local_rank]) && all;
  }
  return all;
}

// Whether it was launched on every GPU, with its mark behind it.
bool NcclQueue::IsMarked(const Piece& piece) {
  const std::vector<NcclLocalRank>& local_ranks = piece.group->local_ranks();
  for (std::size_t local_rank = 0; local_rank < local_ranks.size(); ++local_rank) {
    if (!LauncherOf(local_ranks[local_rank]).IsMarked(piece.launches[local_rank])) return false;
  }
  return true;
}

// One that failed counts at once: the others may wait for it on their GPUs.
Result<bool> NcclQueue::IsLaunched(Piece& piece) {
  bool all = true;
  const std::vector<NcclLocalRank>& local_ranks = piece.group->local_ranks();
  for (std::size_t local_rank = 0; local_rank < local_ranks.size(); ++local_rank) {
    NcclLauncher& launcher = LauncherOf(local_ranks[local_rank]);
    if (!launcher.IsDone(piece.launches[local_rank])) {
      all = false;
    } else if (const Status& done = launcher.StatusOf(piece.launches[local_rank]); !done) {
      return done.error();
    }
  }
  return all;
}

// What GPUs have done since, and what went wrong with it.
void NcclQueue::FollowPieces(TimeNs now) {
  while (piece_first_ != piece_last_ && PieceAt(piece_first_).recorded) {
    Piece& piece = PieceAt(piece_first_);
    HR_CHECK(piece.open >= first_ && piece.open < last_, piece.open, first_, last_);
    Open& open = At(piece.open);
    const Result<bool> done = IsDone(piece_first_);
    if (done && !*done) break;
    // A GPU that answers with an error carries out nothing any more.
    if (!done) Fail(open, done.error());
    if (!done && !piece.lost) Lose(*piece.group, done.error(), now);
    HR_CHECK(open.pieces_open > 0, piece.open);
    --open.pieces_open;
    DropFirstPiece();
  }
  if (piece_first_ == piece_last_) return;
  const Piece& oldest = PieceAt(piece_first_);
  const Open& open = At(oldest.open);
  if (oldest.lost) return;
  if (const Result<bool> state = oldest.group->Poll(); !state) {
    return Lose(*oldest.group, state.error(), now);
  }
  if (open.cancelled_ns != kNever && now - open.cancelled_ns >= options_.cancel_patience_ns) {
    Lose(*oldest.group,
         Error(Code::kCancelled,
               fmt::format("cancelled; GPUs had not ended it after {} ms, so NCCL was aborted",
                           options_.cancel_patience_ns / kMillisecond)),
         now);
  }
}

// Aborted groups: GPUs drop what they do, and only then may transfers end.
void NcclQueue::FollowLost(TimeNs now) {
  if (abort_deadline_ == kNever) return;
  if (!AnyLost()) {
    abort_deadline_ = kNever;
    return;
  }
  for (std::uint64_t i = piece_first_; i != piece_last_; ++i) {
    Piece& piece = PieceAt(i);
    if (!piece.lost || piece.recorded) continue;
    // The mark of each GPU stands: it passes as soon as the kernel has seen that it is aborted. The
    // abort itself goes on for as long as it takes to end NCCL's threads and free its memory.
    if (IsMarked(piece)) {
      piece.recorded = true;
      continue;
    }
    // NCCL may still be about to launch it, and says only by the abort's return that it is not.
    if (!piece.group->ended() || !HasLaunched(piece)) continue;
    // It may stand in some streams and not in others; behind it, all are free again.
    if (const Status done = Record(i); !done) Fail(At(piece.open), done.error());
    piece.recorded = true;
  }
  if (now < abort_deadline_) return;
  broken_ = Error(Code::kInternal,
                  fmt::format("NCCL's abort has not ended within {} ms, and GPUs may still write: "
                              "restart the service",
                              options_.abort_timeout_ns / kMillisecond));
  for (std::uint64_t i = first_; i != last_; ++i) {
    Open& open = At(i);
    open.error = open.error && open.pieces_open != 0
                     ? Error(Code::kInternal, open.error->text() + "; " + broken_->text())
                     : *broken_;
    open.pieces_open = 0;
  }
  while (piece_first_ != piece_last_) DropFirstPiece();
}

void NcclQueue::DropFirstPiece() {
  HR_CHECK(piece_first_ != piece_last_, piece_first_);
  ++piece_first_;
  if (options_.gate != nullptr) options_.gate->EndCollective();
}

// The next piece, to all of its GPUs before another one: the same order on every GPU.
void NcclQueue::Launch(TimeNs now) {
  if (piece_last_ - piece_first_ == kPiecesMax || AnyLost()) return;
  // NCCL takes nothing for a rank that is about something; launch threads wait for that themselves.
  const bool is_about = piece_first_ != piece_last_ && !PieceAt(piece_last_ - 1).recorded;
  if (is_about && !options_.threads_library) return;
  while (next_ != last_ && !At(next_).Launches()) ++next_;
  if (next_ == last_) return;
  Open& open = At(next_);
  const Result<NcclGroup*> group = groups_.GroupFor(open.transfer, now);
  if (!group) return Fail(open, group.error());
  if (*group == nullptr) return;
  if (options_.gate != nullptr && !options_.gate->TryBeginCollective()) return;
  LaunchPiece(open, **group, now);
}

void NcclQueue::LaunchPiece(Open& open, NcclGroup& group, TimeNs now) {
  HR_CHECK(piece_last_ - piece_first_ < kPiecesMax, piece_first_, piece_last_);
  const Transfer& transfer = open.transfer;
  const std::uint64_t end = PieceEnd(transfer, open.walk, open.next, options_.piece_size);
  calls_.clear();
  AddCalls(transfer, groups_.RankMapOf(transfer), open.walk, open.next, end, calls_);
  HR_CHECK(end > open.next && end <= transfer.count && calls_.size() <= kCallsMax, end);
  if (open.begin_ns == kNever) open.begin_ns = now;
  open.next = end;
  if (end < transfer.count) open.walk.Seek(end);
  ++open.pieces_open;
  PieceAt(piece_last_) = {.open = next_, .group = &group};
  PostCalls(PieceAt(piece_last_), transfer);
  ++piece_last_;
}

void NcclQueue::PostCalls(Piece& piece, const Transfer& transfer) {
  const std::vector<NcclLocalRank>& local_ranks = piece.group->local_ranks();
  std::array<NcclLaunch*, kMembersMax> launches{};
  for (std::uint32_t local_rank = 0; local_rank < local_ranks.size(); ++local_rank) {
    NcclLaunch& launch = LauncherOf(local_ranks[local_rank]).Next();
    launch.library = &piece.group->library();
    launch.rank = piece.group->RankOf(local_rank);
    launch.context = local_ranks[local_rank].context;
    launch.stream = local_ranks[local_rank].stream;
    launch.mark = EventOf(piece_last_, local_ranks[local_rank].launch_stream).get().thing;
    launch.dtype = transfer.dtype;
    launch.reduction = transfer.reduction;
    launch.divisor = transfer.divisor != 0 ? transfer.divisor : transfer.members_count;
    launches[local_rank] = &launch;
  }
  for (const NcclCall& call : calls_) {
    HR_CHECK(call.local_rank < local_ranks.size(), call.local_rank, local_ranks.size());
    launches[call.local_rank]->calls.push_back(call);
  }
  for (std::uint32_t local_rank = 0; local_rank < local_ranks.size(); ++local_rank) {
    piece.launches[local_rank] = LauncherOf(local_ranks[local_rank]).Post();
  }
}

void NcclQueue::EndTransfers(TimeNs now, std::vector<Completion>& completions) {
  for (; first_ != last_; ++first_) {
    Open& open = At(first_);
    if (open.pieces_open != 0 || open.Launches()) return;
    HR_CHECK(open.next <= open.transfer.count, open.next, open.transfer.count);
    Completion completion{.token = open.transfer.token};
    if (open.error) {
      completion.code = open.error->code();
      completion.cause = open.error->text();
    } else if (open.next < open.transfer.count || open.begin_ns == kNever) {
      // Nothing or not all of it was given out; what has nothing to move is done all the same.
      completion.code = open.cancelled_ns != kNever ? Code::kCancelled : Code::kOk;
    }
    completion.begin_ns = std::min(open.begin_ns, now);
    completion.end_ns = now;
    completions.push_back(std::move(completion));
    open.error.reset();
    next_ = std::max(next_, first_ + 1);
    HR_CHECK(next_ <= last_, next_, last_);
  }
}

// In all streams that it can; the first error counts.
Status NcclQueue::Record(std::uint64_t piece) {
  Status status;
  for (const NcclLocalRank& local_rank : PieceAt(piece).group->local_ranks()) {
    const PrimaryContext& context = *local_rank.context;
    const CudaDriver& driver = *context.get().driver;
    const CurrentContext current(driver, context.get().context);
    const CuResult result = driver.call().event_record(
        EventOf(piece, local_rank.launch_stream).get().thing, local_rank.stream);
    if (result != CuResult::kSuccess && status) {
      status = driver.Failed(result, "mark the end of a piece");
    }
  }
  return status;
}

Result<bool> NcclQueue::IsDone(std::uint64_t piece) {
  for (const NcclLocalRank& local_rank : PieceAt(piece).group->local_ranks()) {
    const CudaDriver& driver = *local_rank.context->get().driver;
    const CuResult result =
        driver.call().event_query(EventOf(piece, local_rank.launch_stream).get().thing);
    if (result == CuResult::kNotReady) return false;
    if (result != CuResult::kSuccess) {
      return driver.Failed(result, fmt::format("GPU {}", local_rank.context->get().device));
    }
  }
  return true;
}

}  // namespace headrace::transport
