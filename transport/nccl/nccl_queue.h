// Transfers in the order of their posts, carried out a piece at a time by groups of NCCL's ranks: a
// piece is posted to the launchers of all its GPUs before the next one is, and is done when an
// event after it has passed on each of them.
//
// One thread, apart from those of the launchers. Allocates nothing after the start, except texts of
// failures.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ipc/base/check.h"
#include "transport/memory/cuda_handles.h"
#include "transport/memory/memory_gate.h"
#include "transport/nccl/nccl_group.h"
#include "transport/nccl/nccl_launcher.h"
#include "transport/nccl/nccl_pieces.h"
#include "transport/transport.h"

namespace headrace::transport {

// Whose groups a queue uses.
class NcclGroups {
 public:
  virtual ~NcclGroups() = default;
  // Ready for calls, or null: ask again. An error ends the transfer.
  virtual Result<NcclGroup*> GroupFor(const Transfer& transfer, TimeNs now) = 0;
  virtual NcclRankMap RankMapOf(const Transfer& transfer) const = 0;
  // Must not be given out any more: it is being aborted for this. It stays until the queue uses it
  // no more.
  virtual void Lost(NcclGroup& group, const Error& error) = 0;
};

// A stream of a GPU, and what its events are made in.
struct NcclLaunchStream {
  const PrimaryContext* context = nullptr;
  CuStream stream = nullptr;
};

struct NcclQueueOptions {
  std::uint32_t transfers_max = 64;
  std::size_t piece_size = std::size_t{32} << 20;
  TimeNs cancel_patience_ns = 200 * kMillisecond;
  TimeNs abort_timeout_ns = 10 * kSecond;
  // With it, each launch stream has a launch thread, which keeps the library as long as NCCL keeps
  // the thread. Without, the queue's thread makes the calls, of one piece at a time; for one launch
  // stream.
  std::shared_ptr<const NcclLibrary> threads_library{};
  // Between nodes: pieces are collectives to this gate, which outlives the queue. None inside a
  // node.
  MemoryGate* gate = nullptr;
};

class NcclQueue {
 public:
  static constexpr std::size_t kPiecesMax = NcclLauncher::kLaunchesMax;  // under way

  // All outlive the queue. Errors: what a GPU says to an event.
  static Result<std::unique_ptr<NcclQueue>> Make(NcclGroups& groups,
                                                 std::span<const NcclLaunchStream> launch_streams,
                                                 const NcclQueueOptions& options);
  ~NcclQueue();

  bool HasRoom() const { return last_ - first_ < options_.transfers_max; }
  bool empty() const { return first_ == last_; }
  std::uint64_t open_count() const { return last_ - first_; }
  // Grows with everything that is given out and that ends.
  std::uint64_t progress() const { return first_ + piece_first_ + piece_last_; }
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
    bool recorded = false;  // a mark stands behind it in each of its streams
    bool lost = false;      // its group is being aborted
    std::array<std::uint32_t, kMembersMax> launches{};  // by local rank: its launcher's number
  };

  NcclQueue(NcclGroups& groups, std::span<const NcclLaunchStream> launch_streams,
            const NcclQueueOptions& options);
  Open& At(std::uint64_t number) { return open_[number % open_.size()]; }
  const Open& At(std::uint64_t number) const { return open_[number % open_.size()]; }
  Piece& PieceAt(std::uint64_t number) { return pieces_[number % kPiecesMax]; }
  CudaEvent& EventOf(std::uint64_t piece, std::uint32_t launch_stream);
  bool AnyLost() const;
  NcclLauncher& LauncherOf(const NcclLocalRank& local_rank) {
    HR_CHECK(local_rank.launch_stream < launchers_.size(), local_rank.launch_stream);
    return *launchers_[local_rank.launch_stream];
  }

  void FollowLaunches(TimeNs now);
  bool HasLaunched(Piece& piece);
  bool IsMarked(const Piece& piece);
  Result<bool> IsLaunched(Piece& piece);
  void FollowPieces(TimeNs now);
  void FollowLost(TimeNs now);
  void Launch(TimeNs now);
  void LaunchPiece(Open& open, NcclGroup& group, TimeNs now);
  void PostCalls(Piece& piece, const Transfer& transfer);
  void DropFirstPiece();
  void EndTransfers(TimeNs now, std::vector<Completion>& completions);
  Status Record(std::uint64_t piece);
  Result<bool> IsDone(std::uint64_t piece);
  void Fail(Open& open, const Error& error);
  void Lose(NcclGroup& group, const Error& error, TimeNs now);

  NcclGroups& groups_;
  std::vector<NcclLaunchStream> launch_streams_;
  NcclQueueOptions options_;
  std::vector<Open> open_;  // a ring: numbers first_ to last_, those before next_ are launched
  std::uint64_t first_ = 0;
  std::uint64_t next_ = 0;
  std::uint64_t last_ = 0;
  std::array<Piece, kPiecesMax> pieces_{};  // a ring likewise
  std::uint64_t piece_first_ = 0;
  std::uint64_t piece_last_ = 0;
  std::vector<CudaEvent> events_;  // by piece and launch stream
  std::vector<NcclCall> calls_;    // of the piece that is being launched
  std::vector<std::unique_ptr<NcclLauncher>>
      launchers_;                   // by launch stream; they go before the events
  TimeNs abort_deadline_ = kNever;  // of the groups that are lost
  std::optional<Error> broken_;     // an abort did not end: nothing is taken any more
};

}  // namespace headrace::transport
