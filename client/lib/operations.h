// Posts operations into the channel and reports how they ended.
//
// The number of an operation is its number in the channel, which starts at 1, plus `before_`: the
// number of operations in the session's former channels, before reconnects.
//
// Thread-safe. A post takes one uncontended lock, one fence and, only when the service sleeps, one
// system call. Waiters sleep on the completion word itself.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "client/lib/failures.h"
#include "client/lib/wait_counter.h"
#include "ipc/base/check.h"
#include "ipc/base/clock.h"
#include "ipc/base/result.h"
#include "ipc/channel.h"
#include "ipc/completion.h"
#include "ipc/ring_writer.h"

namespace headrace::client {

// What the data path did; written by many threads.
struct OperationCounters {
  std::atomic<std::uint64_t> waits = 0;
  std::atomic<std::uint64_t> waited_ns = 0;
  std::atomic<std::uint64_t> doorbells = 0;
  std::atomic<std::uint64_t> full_waits = 0;
};

// Who stores a record's number in its ready word once the record's memory is ready: in the library,
// a stream of a GPU.
class ReadySignal {
 public:
  virtual ~ReadySignal() = default;
  // Sees to it that ready word `sequence` % kOperationsMax of the channel becomes `sequence`, now
  // or later; `sequence` is the record's number in the channel.
  virtual Status Promise(std::uint64_t sequence) = 0;
};

class Operations {
 public:
  // `doorbell_fd` stays the caller's and must outlive this, as must the channel. A wait looks at
  // the completion word for `spin_ns` before it sleeps.
  Operations(ipc::ChannelLayout& channel, int doorbell_fd, TimeNs spin_ns)
      : writer_(channel),
        reader_(channel),
        channel_(&channel),
        doorbell_fd_(doorbell_fd),
        spin_ns_(spin_ns) {
    elsewhere_->MoveTo(&channel);
  }
  ~Operations() { elsewhere_->MoveTo(nullptr); }
  Operations(const Operations&) = delete;
  Operations& operator=(const Operations&) = delete;

  // How long a post waits for the oldest operation when the channel is full. Before the first post.
  void BoundFullWait(TimeNs bound_ns) { full_wait_ns_ = bound_ns; }

  // Publishes the record and returns its number. kBusy when the channel is full and its oldest
  // operation did not end in time; the loss after the service went away.
  Result<std::uint64_t> Post(ipc::Record record);

  // Likewise for memory that is ready only when `signal` says so; the number is promised to it
  // before the record is published, so a promise that is refused posts nothing. kBusy also when a
  // signal promised earlier for the same slot has not come yet.
  Result<std::uint64_t> PostWhenReady(ipc::Record record, ReadySignal& signal);

  // The loss, once the service went away.
  Status CheckThere() const;

  // Whether an operation has ended; kInvalidArgument for one that was never posted.
  Result<bool> HasEnded(std::uint64_t operation) const;

  // Waits until it has ended or `timeout_ns` (negative: no limit) has passed; says which.
  Result<bool> WaitForEnd(std::uint64_t operation, TimeNs timeout_ns);

  // How it ended; it must have.
  ipc::Outcome OutcomeOf(std::uint64_t operation) const;

  // The rank whose send a receive got, once it ended well. Errors: kInvalidArgument (never posted),
  // kBusy (open, or failed), kNotFound (so long ago that nobody knows).
  Result<std::uint32_t> SourceOf(std::uint64_t operation) const;

  // From now on waits here count in the session of `other`, too. Not while anybody waits here.
  void CountWaitsIn(const Operations& other);

  // The number of the oldest operation that has not ended; 0: none is open.
  std::uint64_t OldestOpen();

  // The oldest open operation whose record names one of the `count` tensors from `first` on; 0:
  // none. Tensors of the layout have numbers of their own and do not count.
  std::uint64_t OldestOpenOn(std::uint32_t first, std::uint32_t count);

  // The service is gone: ends everything open, refuses everything later, all with this error. What
  // a service that was only stopped writes afterwards changes the outcome of nothing.
  void Lose(const Error& loss);

  // Goes on in another channel, after Lose and while nobody is in any call here. Numbers go on from
  // where they were, and how earlier operations ended stays known as far as it was.
  void Renew(ipc::ChannelLayout& channel, int doorbell_fd);

  // Whether a failed operation was returned to somebody since the last Renew.
  bool has_failed() const { return has_failed_.load(std::memory_order_relaxed); }
  // The number in the channel, which counts from the last Renew, of an operation that is open.
  std::uint64_t NumberInChannel(std::uint64_t operation) const {
    HR_CHECK(operation > before_, operation, before_);
    return operation - before_;
  }

  std::uint64_t posted() const { return posted_.load(std::memory_order_relaxed); }
  const OperationCounters& counters() const { return counters_; }

 private:
  Status CheckPosted(std::uint64_t operation) const;
  std::shared_ptr<WaitCounter> CountedIn() const;
  ipc::Outcome LookUp(std::uint64_t operation) const;
  Status WaitForTurn(std::unique_lock<std::mutex>& lock);
  Status WaitForRoom(std::unique_lock<std::mutex>& lock);
  std::uint64_t Publish(std::unique_lock<std::mutex>& lock, const ipc::Record& record);
  void KeepFailureOf(std::uint64_t sequence);
  void KeepFailures();
  ipc::Outcome ReadLocked(std::uint64_t sequence) const;
  bool Spin(std::uint64_t sequence, TimeNs limit_ns) const;
  void Ring();
  // At most until the deadline; says whether it ended.
  bool Sleep(std::uint64_t sequence, TimeNs bound_ns) const;

  mutable std::mutex mutex_;
  ipc::RingWriter writer_;             // guarded by mutex_
  UnclaimedFailures failures_;         // guarded by mutex_
  std::optional<Error> loss_;          // guarded by mutex_
  std::atomic<bool> is_lost_ = false;  // that there is a loss
  std::uint64_t ended_before_ = 1;     // guarded by mutex_; lower numbers in the channel have ended
  // A signal is being promised the next number, without the lock: it may take until the GPU has
  // done something, which Lose may have to bring about.
  bool promising_ = false;  // guarded by mutex_
  std::condition_variable promised_;
  // The last number that a signal was promised, for each slot.
  std::array<std::uint64_t, ipc::kOperationsMax> promises_{};  // guarded by mutex_
  ipc::CompletionReader reader_;
  ipc::ChannelLayout* channel_;  // never null
  int doorbell_fd_;
  std::uint64_t before_ = 0;  // operations in channels before this one
  const TimeNs spin_ns_;
  TimeNs full_wait_ns_ = kNever;
  std::atomic<std::uint64_t> posted_ = 0;  // number of the newest operation
  mutable std::atomic<bool> has_failed_ = false;
  OperationCounters counters_;
  // What other sessions have waited; they share it. And that of the session in which this one's
  // waits count; null: of none.
  std::shared_ptr<WaitCounter> elsewhere_ = std::make_shared<WaitCounter>();
  std::shared_ptr<WaitCounter> counted_in_;  // guarded by mutex_
};

}  // namespace headrace::client
