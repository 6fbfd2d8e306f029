// What dispatch knows of one job: its attached ranks and the operations that are open.
//
// An operation is the same number on every rank: the ranks of a job post the same operations in the
// same order. It opens with the first post, is ready when every rank has posted it, and ends on
// each rank exactly once. One that ends early (error, timeout) stays as a tombstone until every
// rank has posted it, so that latecomers learn the same cause.
//
// Plain data and rules; the actor around it (dispatch.h) does the queueing and the telling.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/error.h"
#include "ipc/base/ids.h"
#include "ipc/board_layout.h"
#include "service/dispatch/check.h"
#include "service/schedule/queue.h"
#include "service/session/session.h"
#include "transport/transport.h"

namespace headrace::service {

inline constexpr std::uint64_t kOperationsMax = ipc::kOperationsMax;  // open, per job

using RankMask = std::uint64_t;
static_assert(transport::kMembersMax == 64, "a RankMask has one bit per rank");

struct Failure {
  Code code = Code::kInternal;
  std::string text;
};

struct Operation {
  enum class State : std::uint8_t { kFree, kGathering, kWaiting, kMoving, kTombstone };

  State state = State::kFree;
  Posted shape;  // the first post
  std::uint32_t first_rank = 0;
  RankMask posted = 0;  // ranks that have posted it
  RankMask told = 0;    // ranks whose completion word has been written
  TimeNs opened_ns = 0;
  TimeNs since_ns = 0;  // when it came into its state
  TimeNs deadline_ns = kNever;
  std::uint16_t board_row = UINT16_MAX;
  schedule::Stage stage;  // valid while kWaiting or kMoving
  ipc::WaitReason reason = ipc::WaitReason::kNone;
  std::uint64_t reason_argument = 0;
  std::optional<Failure> failure;

  bool open() const { return state != State::kFree && state != State::kTombstone; }
};

// One rank of the job.
struct Member {
  std::unique_ptr<Session> session;  // null before it attaches and after it was discarded
  bool gone = false;                 // its lease has ended; memory waits for open operations
  std::uint64_t posted = 0;          // records read
  std::uint64_t ended = 0;           // completions written
  std::uint16_t board_row = UINT16_MAX;
};

class Job {
 public:
  Job(const SessionIdentity& identity, TimeNs now);

  JobId id() const { return id_; }
  const std::string& name() const { return name_; }
  std::uint32_t world_size() const { return static_cast<std::uint32_t>(members_.size()); }
  RankMask all_ranks() const;
  TimeNs opened_ns() const { return opened_ns_; }
  std::uint32_t owner_uid() const { return owner_uid_; }
  std::uint32_t epoch() const { return epoch_; }

  Member& member(std::uint32_t rank) { return members_[rank]; }
  std::vector<Member>& members() { return members_; }
  const std::vector<Member>& members() const { return members_; }
  std::uint32_t attached() const;
  bool HasSessions() const;

  // The operation in the slot of `sequence`; it may be free or belong to another sequence.
  Operation& slot(std::uint64_t sequence) { return operations_[sequence % kOperationsMax]; }
  std::array<Operation, kOperationsMax>& operations() { return operations_; }
  // Where rank `rank`'s memory of the operation in that slot is kept.
  std::byte*& memory(std::uint64_t sequence, std::uint32_t rank) {
    return memory_[(sequence % kOperationsMax) * members_.size() + rank];
  }

  // The lowest rank that has not posted the operation, and whether it has attached at all.
  std::uint32_t FirstMissing(const Operation& operation) const;
  // The transfer that carries out a ready operation.
  transport::Transfer MakeTransfer(const Operation& operation);
  // "rank 2 (pid 77) posted all_reduce of ... as operation 9; rank 0 (pid 75) posted ..."
  std::string DescribeMismatch(const Operation& operation, std::uint32_t rank,
                               const Posted& posted) const;
  // "operation 9 [all_reduce of 1024 float32 (sum), conv1.weight]"
  std::string DescribeOperation(const Operation& operation) const;
  std::string DescribeRank(std::uint32_t rank) const;
  // The name of the tensor the first post names; empty for one-off memory.
  std::string_view TensorName(const Operation& operation) const;

  // Why no operation can succeed any more (a rank is gone); set once.
  std::optional<Failure> failure;
  // Whether the failure is worth the state "failed", or just the orderly end of the job.
  bool failed = false;
  // Set when something on the job's board rows changed.
  bool dirty = true;
  std::uint16_t board_row = UINT16_MAX;
  std::uint64_t operations_open = 0;
  std::uint64_t operations_ended = 0;
  std::uint64_t operations_failed = 0;
  std::uint64_t bytes_moved = 0;
  std::uint32_t events_sent = 0;  // see Dispatch::Tell

 private:
  JobId id_;
  std::string name_;
  std::uint32_t owner_uid_;
  std::uint32_t epoch_;
  TimeNs opened_ns_;
  std::vector<Member> members_;
  std::array<Operation, kOperationsMax> operations_;
  std::vector<std::byte*> memory_;
};

}  // namespace headrace::service
