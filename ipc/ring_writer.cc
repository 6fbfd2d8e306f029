#include "ipc/ring_writer.h"

#include <cstring>

#include "ipc/base/check.h"

namespace headrace::ipc {

bool RingWriter::HasRoom() const {
  if (next_ <= kOperationsMax) return true;
  // Acquire: pairs with CompletionWriter's release, so the service is done with the old record.
  const std::uint64_t word = layout_->words[next_ % kOperationsMax].load(std::memory_order_acquire);
  return HasEnded(word, next_ - kOperationsMax);
}

bool RingWriter::Write(Record record) {
  HR_CHECK(HasRoom(), next_);
  HR_CHECK(next_ <= kSequenceMax, next_);
  Record& slot = layout_->records[next_ % kOperationsMax];
  std::memcpy(static_cast<void*>(&slot), &record, offsetof(Record, commit));
  // Release: pairs with RingReader::Commit's acquire.
  std::atomic_ref<std::uint64_t>(slot.commit).store(next_, std::memory_order_release);
  ++next_;
  // Store commit, then load service_sleeps; the service stores service_sleeps, then loads commit.
  // With a full fence on both sides at least one of them sees the other's store.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::atomic<std::uint32_t>& sleeps = layout_->header.service_sleeps;
  return sleeps.load(std::memory_order_relaxed) != 0 && sleeps.exchange(0) != 0;
}

}  // namespace headrace::ipc
