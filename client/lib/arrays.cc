#include "client/lib/arrays.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ipc/base/check.h"
#include "ipc/base/copy.h"

namespace headrace::client {
namespace {

// Where the parts table of an array is in its span: behind the array.
std::size_t TableOffset(const ArrayUse& use) {
  constexpr std::size_t kAlignment = alignof(ipc::PartRow);
  return (use.size + kAlignment - 1) / kAlignment * kAlignment;
}

std::size_t SizeOf(const ArrayUse& use) {
  // An operation of nothing has a place of its own, too.
  if (use.parts.empty()) return std::max<std::size_t>(use.size, 1);
  return TableOffset(use) + use.parts.size() * sizeof(ipc::PartRow);
}

}  // namespace

Result<std::uint64_t> Arrays::Post(ipc::Record record, ArrayUse use) {
  FreeDiscarded();
  Result<Staging::Allocation> span = staging_->Allocate(SizeOf(use));
  if (!span) return span.error();
  for (const ArrayPiece& piece : use.read) {
    HR_CHECK(piece.offset <= use.size && piece.size <= use.size - piece.offset, piece.offset,
             piece.size, use.size);
    Copy(use.size, span->data + piece.offset, piece.memory, piece.size);
  }
  record.tensor = ipc::kNoTensor;
  record.segment = span->segment;
  record.offset = span->offset;
  return PostIn(*span, record, std::move(use), nullptr);
}

Result<std::uint64_t> Arrays::PostTable(ipc::Record record, std::vector<ipc::PartRow> parts,
                                        ReadySignal* signal) {
  FreeDiscarded();
  ArrayUse use{.parts = std::move(parts)};
  Result<Staging::Allocation> span = staging_->Allocate(SizeOf(use));
  if (!span) return span.error();
  const Result<std::uint64_t> sequence = PostIn(*span, record, std::move(use), signal);
  // A stream waits for the operation, and perhaps nobody else ever does.
  if (sequence && signal != nullptr) Discard(*sequence);
  return sequence;
}

Result<std::uint64_t> Arrays::PostIn(const Staging::Allocation& span, const ipc::Record& record,
                                     ArrayUse use, ReadySignal* signal) {
  ipc::Record named = record;
  if (!use.parts.empty()) {
    const std::size_t table = TableOffset(use);
    HR_CHECK(table + use.parts.size() * sizeof(ipc::PartRow) <= span.size, table, span.size);
    std::memcpy(span.data + table, use.parts.data(), use.parts.size() * sizeof(ipc::PartRow));
    named.flags |= ipc::kRecordHasParts;
    named.parts = span.segment;
    named.tag = span.offset + table;
  }
  const Result<std::uint64_t> sequence =
      signal == nullptr ? operations_.Post(named) : operations_.PostWhenReady(named, *signal);
  if (!sequence) {
    staging_->Free(span);
    return sequence;
  }
  posted_.fetch_add(1, std::memory_order_relaxed);
  std::lock_guard lock(mutex_);
  const bool is_new = flights_.emplace(*sequence, Flight{span, std::move(use.written)}).second;
  HR_CHECK(is_new, *sequence);  // else nobody would free the span
  return sequence;
}

void Arrays::Settle(std::uint64_t sequence, bool succeeded) {
  std::unique_lock lock(mutex_);
  const auto found = flights_.find(sequence);
  if (found == flights_.end()) return;
  if (found->second.settling) {
    settled_.wait(lock, [this, sequence] { return !flights_.contains(sequence); });
    return;
  }
  found->second.settling = true;
  const Staging::Allocation span = found->second.span;
  const std::vector<ArrayPiece> written = std::move(found->second.written);
  lock.unlock();
  if (succeeded) {
    for (const ArrayPiece& piece : written) {
      HR_CHECK(piece.offset <= span.size && piece.size <= span.size - piece.offset, piece.offset,
               piece.size, span.size);
      Copy(span.size, piece.memory, span.data + piece.offset, piece.size);
    }
  }
  staging_->Free(span);
  lock.lock();
  flights_.erase(sequence);
  settled_.notify_all();
}

void Arrays::Discard(std::uint64_t sequence) {
  {
    std::lock_guard lock(mutex_);
    const auto found = flights_.find(sequence);
    if (found == flights_.end() || found->second.settling) return;
    discarded_.push_back({sequence, found->second.span});
    flights_.erase(found);
  }
  FreeDiscarded();
}

void Arrays::SettleAll() {
  FreeDiscarded();
  std::vector<std::uint64_t> open;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [sequence, flight] : flights_) open.push_back(sequence);
  }
  for (const std::uint64_t sequence : open) {
    Settle(sequence, operations_.OutcomeOf(sequence).code == Code::kOk);
  }
}

void Arrays::Renew(Control& control) { staging_ = std::make_unique<Staging>(control); }

void Arrays::FreeDiscarded() {
  std::lock_guard lock(mutex_);
  std::erase_if(discarded_, [this](const Discarded& discarded) {
    const Result<bool> ended = operations_.HasEnded(discarded.sequence);
    if (!ended || !*ended) return false;
    staging_->Free(discarded.span);
    return true;
  });
}

void Arrays::Copy(std::size_t whole, std::byte* target, const std::byte* source, std::size_t size) {
  CopyPartOf(whole, target, source, size);
  copied_size_.fetch_add(size, std::memory_order_relaxed);
}

}  // namespace headrace::client
