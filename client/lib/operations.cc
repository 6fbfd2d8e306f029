#include "client/lib/operations.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::client {
namespace {

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// How many looks between two readings of the clock.
constexpr int kLooksPerClock = 32;

}  // namespace

Result<std::uint64_t> Operations::Post(ipc::Record record) {
  record.posted_ns = static_cast<std::uint64_t>(MonotonicNow());
  std::unique_lock lock(mutex_);
  if (loss_ || promising_ || !writer_.HasRoom()) {
    if (Status status = WaitForTurn(lock); !status) return status.error();
  }
  return Publish(lock, record);
}

Result<std::uint64_t> Operations::PostWhenReady(ipc::Record record, ReadySignal& signal) {
  record.posted_ns = static_cast<std::uint64_t>(MonotonicNow());
  record.flags |= ipc::kRecordAwaitsWord;
  std::unique_lock lock(mutex_);
  if (Status status = WaitForTurn(lock); !status) return status.error();
  const std::uint64_t sequence = writer_.next_sequence();
  const std::size_t slot = sequence % ipc::kOperationsMax;
  // A stream that is still to write an older number here would take this one back.
  if (channel_->ready[slot].load(std::memory_order_relaxed) < promises_[slot]) {
    return Error(Code::kBusy,
                 fmt::format("the stream has not yet come to operation {}, which ended early: wait "
                             "for the stream",
                             before_ + promises_[slot]));
  }
  HR_CHECK(!promising_ && promises_[slot] < sequence, sequence, promises_[slot]);
  promising_ = true;
  lock.unlock();
  const Status promised = signal.Promise(sequence);
  lock.lock();
  HR_CHECK(promising_, sequence);
  promising_ = false;
  promised_.notify_all();
  if (!promised) return promised.error();
  promises_[slot] = sequence;
  if (loss_) return *loss_;
  return Publish(lock, record);
}

std::uint64_t Operations::Publish(std::unique_lock<std::mutex>& lock, const ipc::Record& record) {
  const std::uint64_t sequence = writer_.next_sequence();
  HR_CHECK(!promising_ && !loss_, sequence);
  if (sequence > ipc::kOperationsMax) KeepFailureOf(sequence - ipc::kOperationsMax);
  const bool service_sleeps = writer_.Write(record);
  const std::uint64_t operation = before_ + sequence;
  posted_.store(operation, std::memory_order_relaxed);  // a caller knows a number it was given
  lock.unlock();
  if (service_sleeps) Ring();
  return operation;
}

Status Operations::WaitForTurn(std::unique_lock<std::mutex>& lock) {
  while (!loss_) {
    if (promising_) {
      promised_.wait(lock);
    } else if (writer_.HasRoom()) {
      return {};
    } else if (Status status = WaitForRoom(lock); !status) {
      return status;
    }
  }
  return *loss_;
}

Status Operations::WaitForRoom(std::unique_lock<std::mutex>& lock) {
  const TimeNs begin = MonotonicNow();
  while (!writer_.HasRoom()) {
    counters_.full_waits.fetch_add(1, std::memory_order_relaxed);
    const std::uint64_t oldest = writer_.next_sequence() - ipc::kOperationsMax;
    const TimeNs left = full_wait_ns_ == kNever ? kNever : full_wait_ns_ - (MonotonicNow() - begin);
    // Not under the lock: Lose needs it to end what is waited for here.
    lock.unlock();
    const bool ended = reader_.Wait(oldest, left);
    lock.lock();
    if (loss_) return *loss_;
    if (!ended) {
      return Error(Code::kBusy, fmt::format("{} operations are open and the oldest, {}, did not "
                                            "end within {} ms",
                                            ipc::kOperationsMax, before_ + oldest,
                                            full_wait_ns_ / kMillisecond));
    }
  }
  return {};
}

void Operations::KeepFailureOf(std::uint64_t sequence) {
  // The word is about to serve a new operation; whoever asks for the old one later gets it from
  // here.
  const ipc::CompletionWord word = ipc::CompletionWord::Unpack(
      channel_->words[sequence % ipc::kOperationsMax].load(std::memory_order_relaxed));
  if (word.code == Code::kOk) return;
  failures_.Keep(before_ + sequence, ReadLocked(sequence));
}

void Operations::Ring() {
  counters_.doorbells.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t one = 1;
  // Fails only when 2^64 - 2 rings wait to be taken: the service is then awake for good.
  [[maybe_unused]] const ssize_t written = ::write(doorbell_fd_, &one, sizeof one);
}

Status Operations::CheckThere() const {
  std::lock_guard lock(mutex_);
  if (loss_) return *loss_;
  return {};
}

Status Operations::CheckPosted(std::uint64_t operation) const {
  if (operation != 0 && operation <= posted()) return {};
  return Error(
      Code::kInvalidArgument,
      fmt::format("operation {} was never posted in this session ({} were)", operation, posted()));
}

Result<bool> Operations::HasEnded(std::uint64_t operation) const {
  if (Status status = CheckPosted(operation); !status) return status.error();
  return operation <= before_ || reader_.HasEnded(NumberInChannel(operation));
}

bool Operations::Spin(std::uint64_t sequence, TimeNs limit_ns) const {
  const TimeNs deadline = MonotonicNow() + limit_ns;
  do {
    for (int look = 0; look < kLooksPerClock; ++look) {
      if (reader_.HasEnded(sequence)) return true;
      Pause();
    }
  } while (MonotonicNow() < deadline);
  return false;
}

bool Operations::Sleep(std::uint64_t sequence, TimeNs bound_ns) const {
  const TimeNs spin_ns = std::min(spin_ns_, bound_ns);
  if (spin_ns > 0 && Spin(sequence, spin_ns)) return true;
  return reader_.Wait(sequence, bound_ns == kNever ? kNever : bound_ns - spin_ns);
}

void Operations::CountWaitsIn(const Operations& other) {
  const std::lock_guard lock(mutex_);
  counted_in_ = other.elsewhere_;
  counted_in_->Enable();
}

std::shared_ptr<WaitCounter> Operations::CountedIn() const {
  const std::lock_guard lock(mutex_);
  return counted_in_;
}

Result<bool> Operations::WaitForEnd(std::uint64_t operation, TimeNs timeout_ns) {
  if (Status status = CheckPosted(operation); !status) return status.error();
  if (operation <= before_) return true;
  const std::uint64_t sequence = NumberInChannel(operation);
  if (reader_.HasEnded(sequence)) return true;
  if (timeout_ns == 0) return false;
  const TimeNs begin = MonotonicNow();
  const TimeNs bound_ns = timeout_ns < 0 ? kNever : timeout_ns;
  // One for the whole wait: another thread may say meanwhile where waits are counted.
  const std::shared_ptr<WaitCounter> counter = CountedIn();
  if (counter != nullptr) counter->OnWaitBegun();
  const bool ended = Sleep(sequence, bound_ns);
  const auto waited_ns = static_cast<std::uint64_t>(MonotonicNow() - begin);
  if (counter != nullptr) counter->OnWaitEnded(waited_ns, ended);
  counters_.waits.fetch_add(1, std::memory_order_relaxed);
  counters_.waited_ns.fetch_add(waited_ns, std::memory_order_relaxed);
  channel_->header.client_waited_ns.fetch_add(waited_ns, std::memory_order_relaxed);
  return ended;
}

ipc::Outcome Operations::OutcomeOf(std::uint64_t operation) const {
  ipc::Outcome outcome = LookUp(operation);
  if (outcome.code != Code::kOk && operation > before_) {
    has_failed_.store(true, std::memory_order_relaxed);
  }
  return outcome;
}

ipc::Outcome Operations::LookUp(std::uint64_t operation) const {
  if (operation <= before_) {
    std::lock_guard lock(mutex_);
    return failures_.Find(operation);
  }
  // Success needs no lock: a word of this very operation says so.
  const std::uint64_t sequence = NumberInChannel(operation);
  const ipc::CompletionWord word = ipc::CompletionWord::Unpack(
      channel_->words[sequence % ipc::kOperationsMax].load(std::memory_order_acquire));
  if (word.sequence == sequence && word.code == Code::kOk && !is_lost_.load()) return {};
  std::lock_guard lock(mutex_);
  // A service that was given up may still write into the channel: what counts was kept then.
  if (loss_) return failures_.Find(operation);
  // While the lock is held no post can begin, so the slot is either this operation's until we have
  // read it, or was given on before and its failure is among those kept.
  if (writer_.next_sequence() > sequence + ipc::kOperationsMax) return failures_.Find(operation);
  return ReadLocked(sequence);
}

ipc::Outcome Operations::ReadLocked(std::uint64_t sequence) const {
  ipc::Outcome outcome = reader_.Read(sequence);
  // The service had no chance to write a text for what Lose ended; the loss is the text.
  const bool without_text = outcome.text == CodeName(outcome.code);
  if (outcome.code == Code::kUnavailable && without_text && loss_) outcome.text = loss_->text();
  return outcome;
}

Result<std::uint32_t> Operations::SourceOf(std::uint64_t operation) const {
  const Result<bool> ended = HasEnded(operation);
  if (!ended) return ended.error();
  std::lock_guard lock(mutex_);
  // The words of a service that was given up mean nothing any more.
  const bool forgotten = operation <= before_ || loss_ ||
                         writer_.next_sequence() > NumberInChannel(operation) + ipc::kOperationsMax;
  if (*ended && forgotten) {
    return Error(Code::kNotFound,
                 fmt::format("operation {} ended too long ago to know who sent: ask before {} more "
                             "are posted",
                             operation, ipc::kOperationsMax));
  }
  const std::uint64_t sequence = forgotten ? 0 : NumberInChannel(operation);
  const ipc::CompletionWord word = ipc::CompletionWord::Unpack(
      channel_->words[sequence % ipc::kOperationsMax].load(std::memory_order_acquire));
  if (!*ended || word.sequence != sequence || word.code != Code::kOk) {
    return Error(Code::kBusy,
                 fmt::format("operation {} has not ended well: wait for it", operation));
  }
  return word.text_index;
}

std::uint64_t Operations::OldestOpen() {
  std::lock_guard lock(mutex_);
  const std::uint64_t next = writer_.next_sequence();
  if (next > ipc::kOperationsMax)
    ended_before_ = std::max(ended_before_, next - ipc::kOperationsMax);
  while (ended_before_ < next && reader_.HasEnded(ended_before_)) ++ended_before_;
  HR_CHECK(ended_before_ <= next, ended_before_, next);
  return ended_before_ < next ? before_ + ended_before_ : 0;
}

std::uint64_t Operations::OldestOpenOn(std::uint32_t first, std::uint32_t count) {
  std::lock_guard lock(mutex_);
  const std::uint64_t next = writer_.next_sequence();
  const std::uint64_t oldest = next > ipc::kOperationsMax ? next - ipc::kOperationsMax : 1;
  for (std::uint64_t sequence = oldest; sequence < next; ++sequence) {
    if (reader_.HasEnded(sequence)) continue;
    // Only this process writes there, and not before the operation has ended.
    const ipc::Record& record = channel_->records[sequence % ipc::kOperationsMax];
    if ((record.flags & ipc::kRecordIsGradient) != 0 || record.tensor == ipc::kNoTensor) continue;
    const auto names = [first, count](std::uint32_t id) {
      return id >= first && id - first < count;
    };
    // A record with a result elsewhere has that tensor in a field which the service does not read.
    if (names(record.tensor) || (ipc::HasResult(record) && names(record.segment))) {
      return before_ + sequence;
    }
  }
  return 0;
}

void Operations::Lose(const Error& loss) {
  std::lock_guard lock(mutex_);
  if (loss_) return;
  loss_ = loss;
  is_lost_.store(true);
  // Nothing can be posted any more, so this ends all there is.
  reader_.EndAllOpen(writer_.next_sequence() - 1, loss.code());
  KeepFailures();
}

void Operations::KeepFailures() {
  const std::uint64_t next = writer_.next_sequence();
  const std::uint64_t first = next > ipc::kOperationsMax ? next - ipc::kOperationsMax : 1;
  for (std::uint64_t sequence = first; sequence < next; ++sequence) KeepFailureOf(sequence);
}

void Operations::Renew(ipc::ChannelLayout& channel, int doorbell_fd) {
  std::lock_guard lock(mutex_);
  HR_CHECK(!promising_, before_);
  if (!loss_) KeepFailures();
  before_ += writer_.next_sequence() - 1;
  HR_CHECK(posted() == before_, posted(), before_);
  ended_before_ = 1;
  writer_ = ipc::RingWriter(channel);
  reader_ = ipc::CompletionReader(channel);
  channel_ = &channel;
  elsewhere_->MoveTo(&channel);
  doorbell_fd_ = doorbell_fd;
  promises_.fill(0);
  loss_.reset();
  is_lost_.store(false);
  has_failed_.store(false, std::memory_order_relaxed);
}

}  // namespace headrace::client
