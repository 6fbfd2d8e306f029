// Transfers in the order of their posts, carried out a piece at a time by groups of NCCL's ranks: a
// piece is launched when the one before it stands in the streams, and is done when an event behind
// it has passed on each of them.
//
// One thread. Allocates nothing after the start, but for words about failures.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "transport/memory/cuda_handles.h"
#include "transport/nccl/nccl_group.h"
#include "transport/nccl/nccl_pieces.h"
#include "transport/transport.h"

namespace headrace::transport {

// Whose groups a queue uses.
class NcclGroups {
 public:
  virtual ~NcclGroups() = default;
  // Ready for calls, or null: ask again. An error ends the transfer.
  virtual Result<NcclGroup*> GroupFor(const Transfer& transfer, TimeNs now) = 0;
  virtual NcclSeating SeatingOf(const Transfer& transfer) const = 0;
  // Must not be given out any more: it is being aborted for this. It stays until the queue uses it
  // no more.
  virtual void Lost(NcclGroup& group, const Error& error) = 0;
};

// A stream of a GPU, and what its events are made in.
struct NcclTrack {
  const PrimaryContext* context = nullptr;
  CuStream stream = nullptr;
};

struct NcclQueueOptions {
  std::uint32_t transfers_max = 64;
  std::size_t piece_size = std::size_t{32} << 20;
  TimeNs cancel_patience_ns = 200 * kMillisecond;
  TimeNs abort_timeout_ns = 700 * kMillisecond;
};

class NcclQueue {
 public:
  static constexpr std::size_t kPiecesMax = 4;  // under way

  // All outlive the queue. Errors: what a GPU says to an event.
  static Result<std::unique_ptr<NcclQueue>> Make(NcclGroups& groups,
                                                 std::span<const NcclTrack> tracks,
                                                 const NcclQueueOptions& options);

  bool HasRoom() const { return last_ - first_ < options_.transfers_max; }
  bool empty() const { return first_ == last_; }
  // An abort did not end: what is open has been given up, and GPUs may still write.
  bool broken() const { return broken_.has_value(); }
  // Open transfers with this token: none or one.
  bool Has(std::uint64_t token) const;
  bool Uses(const NcclGroup& group) const;

  // Takes it; there must be room. With an error, it ends with that in its turn.
  void Add(const Transfer& transfer, std::optional<Error> error);
  void Cancel(std::uint64_t token, TimeNs now);
  void CancelAll(TimeNs now);
  // All that are open end with this, and what is under way is aborted.
  void FailAll(const Error& error, TimeNs now);
  // Goes on; appends ended transfers. Whether anything is open.
  bool Step(TimeNs now, std::vector<Completion>& completions);

 private:
  struct Open {
    Transfer transfer;
    RunWalk walk;
    std::uint64_t next = 0;  // element that is not launched yet
    std::uint32_t pieces_open = 0;
    TimeNs begin_ns = kNever;
    TimeNs cancelled_ns = kNever;
    std::optional<Error> error;

    bool Launches() const { return !error && cancelled_ns == kNever && next < transfer.count; }
  };
  struct Piece {
    std::uint64_t open = 0;  // its number in the queue
    NcclGroup* group = nullptr;
    bool recorded = false;  // an event stands behind it in each of its streams
    bool lost = false;      // its group is being aborted
  };

  NcclQueue(NcclGroups& groups, std::span<const NcclTrack> tracks, const NcclQueueOptions& options);
  Open& At(std::uint64_t number) { return open_[number % open_.size()]; }
  const Open& At(std::uint64_t number) const { return open_[number % open_.size()]; }
  Piece& PieceAt(std::uint64_t number) { return pieces_[number % kPiecesMax]; }
  CudaEvent& EventOf(std::uint64_t piece, std::uint32_t track);
  bool AnyLost() const;

  void FollowLaunch(TimeNs now);
  void FollowPieces(TimeNs now);
  void FollowLost(TimeNs now);
  void Launch(TimeNs now);
  void LaunchPiece(Open& open, NcclGroup& group, TimeNs now);
  void EndTransfers(TimeNs now, std::vector<Completion>& completions);
  Status Record(std::uint64_t piece);
  Result<bool> IsDone(std::uint64_t piece);
  void Fail(Open& open, const Error& error);
  void Lose(NcclGroup& group, const Error& error, TimeNs now);

  NcclGroups& groups_;
  std::vector<NcclTrack> tracks_;
  NcclQueueOptions options_;
  std::vector<Open> open_;  // a ring: numbers first_ to last_, those before next_ are launched
  std::uint64_t first_ = 0;
  std::uint64_t next_ = 0;
  std::uint64_t last_ = 0;
  std::array<Piece, kPiecesMax> pieces_{};  // a ring likewise; only its last may be not recorded
  std::uint64_t piece_first_ = 0;
  std::uint64_t piece_last_ = 0;
  std::vector<CudaEvent> events_;  // by piece and track
  NcclBatch batch_;
  TimeNs abort_deadline_ = kNever;  // of the groups that are lost
  std::optional<Error> broken_;     // an abort did not end: nothing is taken any more
};

}  // namespace headrace::transport
