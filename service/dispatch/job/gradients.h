// A job's gradients on one node: which are ready, which block of the plan comes next, and which
// ranks wait for what.
//
// A rank posts each gradient once an iteration, in any order. Blocks begin strictly in the plan's
// order, iteration after iteration, so every node begins the same blocks in the same order,
// whatever is posted early or late. A block can begin when every local rank has posted all
// gradients that it holds bytes of.
//
// Plain data and rules; plans.h and flow.h queue blocks and write completions.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "service/dispatch/job/operation.h"
#include "service/session/layout.h"

namespace headrace::service {

// Blocks of one job's plan that may have begun and not ended.
inline constexpr std::uint64_t kPlannedOpenMax = 64;

class Gradients {
 public:
  Gradients(std::shared_ptr<const Layout> layout, std::uint32_t world_size);

  const Layout& layout() const { return *layout_; }
  // From the lowest gradient's first byte to the last one's end.
  std::uint64_t bytes() const { return bytes_; }
  std::uint32_t count() const { return static_cast<std::uint32_t>(gradients_.size()); }

  // ---- posts ----
  bool IsOpen(std::uint32_t rank, std::uint32_t tensor) const {
    return gradients_[tensor].posts.Has(rank);
  }
  bool AnyOpen() const { return open_count_ > 0; }
  // Posted by some rank and not ended.
  std::uint64_t open_count() const { return open_count_; }
  // `record` is the number of the rank's record; the gradient is not open for that rank. When it
  // awaits its ready word it is not ready before MarkReady.
  void Post(std::uint32_t rank, std::uint32_t tensor, std::uint64_t record, bool awaits, TimeNs now,
            TimeNs deadline_ns);
  bool IsAwaited(std::uint32_t rank, std::uint32_t tensor, std::uint64_t record) const {
    return gradients_[tensor].posts.Awaits(rank) && RecordOf(rank, tensor) == record;
  }
  void MarkReady(std::uint32_t rank, std::uint32_t tensor, TimeNs now) {
    gradients_[tensor].posts.MarkReady(rank, now);
  }
  std::uint64_t RecordOf(std::uint32_t rank, std::uint32_t tensor) const {
    return records_[std::size_t{tensor} * world_size_ + rank];
  }
  const Posts& posts(std::uint32_t tensor) const { return gradients_[tensor].posts; }
  // A record says by how many ranks the averages of its iteration are divided (0: by all); false if
  // another record of that iteration has said otherwise.
  bool SetContributors(std::uint64_t iteration, std::uint32_t contributors);
  // The iteration that the gradient is in, from 1.
  std::uint64_t IterationOf(std::uint32_t tensor) const { return gradients_[tensor].ended + 1; }
  // Iterations of which the rank has posted every gradient.
  std::uint64_t IterationsOf(std::uint32_t rank) const;

  // ---- plans ----
  // Keeps the offered plan; returns the last iteration of which a block has begun. No block of that
  // iteration + `slack` or a later one begins before the switch.
  std::uint64_t Offer(std::shared_ptr<const WirePlan> plan, std::uint64_t slack);
  // All nodes have agreed on the iteration. False when no plan of that version was offered, or the
  // iteration has begun. `iterations_before`: see below.
  bool AcceptSwitch(std::uint32_t version, std::uint64_t from_iteration,
                    std::uint64_t iterations_before);
  // Puts the offered plan in force if the next block is the first of the agreed iteration. Returns
  // whether it did.
  bool SwitchIfDue();
  const WirePlan* plan() const { return plan_.get(); }
  const WirePlan* offered() const { return offered_.get(); }
  std::uint64_t next_from() const { return next_from_; }  // 0: not agreed yet
  std::uint64_t plan_from() const { return plan_from_; }
  // Iterations of earlier epochs, before this one's first; the same on all nodes, and known before
  // a block begins.
  std::uint64_t iterations_before() const { return iterations_before_; }

  // ---- blocks ----
  // The block that begins next; null while there is no plan for its iteration.
  const WireBlock* Head() const {
    if (!plan_ || (held_from_ != 0 && iteration_ >= held_from_)) return nullptr;
    return &plan_->blocks[next_];
  }
  std::uint64_t head_iteration() const { return iteration_; }
  std::uint32_t head_index() const { return next_; }
  // The first gradient of the head that is not ready on all of `ranks`; nothing if the head can
  // begin.
  std::optional<std::uint32_t> Missing(RankMask ranks);
  // Whether blocks wait for that rank: none is under way, and not all of its gradients in the head
  // are ready.
  bool WaitsFor(std::uint32_t rank) const;
  // Whether the head is an all-gather, which waits for the reduce-scatters before it.
  bool AwaitsScatters() const {
    const WireBlock* const head = Head();
    return head != nullptr && head->kind == Collective::kAllGather && scatters_open_ > 0;
  }
  // Makes the operation that moves the head; null while too many are open.
  Operation* Begin();
  Operation& operation(std::uint64_t sequence) { return operations_[sequence % kPlannedOpenMax]; }
  std::array<Operation, kPlannedOpenMax>& operations() { return operations_; }
  std::uint64_t operations_open() const { return operations_open_; }

  // A block has ended well: the gradients that have ended with it, to be completed for their ranks
  // and closed before the next call, and whether it was the last block of its iteration.
  struct Ended {
    std::span<const std::uint32_t> gradients;
    bool iteration = false;
  };
  Ended End(const Operation& operation);
  // Frees the operation's place, however it ended.
  void Free(Operation& operation);
  // Forgets the gradient's posts: its ranks have their completions.
  void Close(std::uint32_t tensor);
  // The same for a gradient of an iteration that no block moves: that iteration does not count as
  // ended.
  void Refuse(std::uint32_t tensor);

  // ---- as people steer ----
  // The last iteration of which anything was posted.
  std::uint64_t LastIteration() const;
  // Iterations of which every gradient has ended.
  std::uint64_t IterationsEnded() const;
  void PostponeDeadlines(TimeNs by_ns);

 private:
  struct Gradient {
    Posts posts;              // in this iteration
    std::uint64_t ended = 0;  // iterations
    std::uint64_t begun = 0;  // the iteration that blocks_left counts for
    std::uint32_t blocks_left = 0;
  };
  struct Contributors {
    std::uint64_t iteration = 0;
    std::uint32_t count = 0;
  };
  struct Iteration {
    std::uint64_t number = 0;
    std::uint64_t blocks_left = 0;
  };

  std::shared_ptr<const Layout> layout_;  // shared by the sessions and peers; all only read it
  std::uint32_t world_size_;
  std::uint64_t bytes_ = 0;
  std::vector<Gradient> gradients_;
  std::vector<std::uint64_t> records_;  // by tensor, then by rank
  std::uint64_t open_count_ = 0;        // gradients with a post
  std::vector<std::uint32_t> ended_;    // of the last End
  // Both shared with the operations under way.
  std::shared_ptr<const WirePlan> plan_;
  std::shared_ptr<const WirePlan> offered_;
  std::uint64_t plan_from_ = 0;
  std::uint64_t next_from_ = 0;
  std::uint64_t iterations_before_ = 0;
  std::uint64_t held_from_ = 0;  // promised: no block of this iteration begins before the switch
  std::uint64_t iteration_ = 1;
  std::uint32_t next_ = 0;    // the head's place in the plan
  std::size_t checked_ = 0;   // of the head's gradients: those before are ready
  std::uint64_t number_ = 0;  // blocks begun since the job's beginning
  std::uint64_t operations_open_ = 0;
  std::uint64_t scatters_open_ = 0;  // of them, reduce-scatters
  std::array<Operation, kPlannedOpenMax> operations_;
  std::array<Iteration, 2> iterations_;  // that have blocks under way
  // A gradient is posted again once it has ended, so three iterations may be posted at one time.
  std::array<Contributors, 3> contributors_;
};

}  // namespace headrace::service
