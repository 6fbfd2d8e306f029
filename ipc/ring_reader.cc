#include "ipc/ring_reader.h"

#include <fmt/format.h>

#include <atomic>

#include "ipc/shared_words.h"

namespace headrace::ipc {

std::uint64_t RingReader::Commit() const {
  // Acquire: pairs with RingWriter::Write's release.
  return std::atomic_ref<std::uint64_t>(layout_.records[next_ % kOperationsMax].commit)
      .load(std::memory_order_acquire);
}

namespace {

// What the slot holds while operation `next` is not written: nothing, or its previous user.
std::uint64_t StaleCommit(std::uint64_t next) {
  return next <= kOperationsMax ? 0 : next - kOperationsMax;
}

}  // namespace

bool RingReader::HasRecord() const { return Commit() != StaleCommit(next_); }

Result<std::optional<Record>> RingReader::Read() {
  const std::uint64_t commit = Commit();
  if (commit == StaleCommit(next_)) return std::optional<Record>();
  if (commit != next_ || next_ > kSequenceMax) {
    return Error(Code::kCorrupt,
                 fmt::format("submission ring: slot {} holds commit word {}, expected {}: the "
                             "channel was overwritten or the client library is damaged",
                             next_ % kOperationsMax, commit, next_));
  }
  Record record;
  // Each word is loaded once: what is checked later is what was read here.
  LoadWords(&record, &layout_.records[next_ % kOperationsMax], offsetof(Record, commit));
  record.commit = commit;
  ++next_;
  return std::optional<Record>(record);
}

bool RingReader::PrepareToSleep() {
  layout_.header.service_sleeps.store(1, std::memory_order_relaxed);
  // The other half of the pair in RingWriter::Write.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!HasRecord()) return true;
  Awake();
  return false;
}

}  // namespace headrace::ipc
