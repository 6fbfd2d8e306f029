// Operations on one-off arrays: the input is copied into staging memory by the post, the result is
// copied back by the wait.
//
// Thread-safe; two threads may wait for the same operation, and both return after the copy.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "client/lib/operations.h"
#include "client/lib/staging.h"
#include "ipc/base/result.h"
#include "ipc/records.h"

namespace headrace::client {

// Bytes of an operation's array, in the caller's memory.
struct ArrayPiece {
  std::byte* memory = nullptr;
  std::size_t offset = 0;  // in the array
  std::size_t size = 0;
};

// What an operation reads of its array of `size` bytes and what it writes there. What it reads in
// no piece has undefined values.
struct ArrayUse {
  std::size_t size = 0;
  std::vector<ArrayPiece> read{};
  std::vector<ArrayPiece> written{};
  std::vector<ipc::PartRow> parts{};  // the record's parts table, or none
};

class Arrays {
 public:
  Arrays(Control& control, Operations& operations)
      : staging_(std::make_unique<Staging>(control)), operations_(operations) {}

  // Copies what is read, names the staging memory in `record` and posts it. Pieces lie within the
  // array.
  Result<std::uint64_t> Post(ipc::Record record, ArrayUse use);
  // Posts a record that names its memory, with a parts table in staging memory. With `signal` its
  // memory is ready when that says so, and nobody need wait for it here.
  Result<std::uint64_t> PostTable(ipc::Record record, std::vector<ipc::PartRow> parts,
                                  ReadySignal* signal);

  // Once `sequence` has ended: copies the result back if it `succeeded` and frees the staging
  // memory. Without effect on operations that are not an array's, or were settled before.
  void Settle(std::uint64_t sequence, bool succeeded);

  // The array is not touched from now on; the staging memory is freed once the operation ended.
  void Discard(std::uint64_t sequence);

  // Copies back what has succeeded, and gives up the rest. All operations must have ended.
  void SettleAll();
  // Takes staging memory from another service, after SettleAll and while nobody is in any call
  // here.
  void Renew(Control& control);

  std::size_t staging_size() const { return staging_->size(); }
  std::uint64_t posted() const { return posted_.load(std::memory_order_relaxed); }
  std::uint64_t copied_size() const { return copied_size_.load(std::memory_order_relaxed); }

 private:
  struct Flight {
    Staging::Allocation span;
    std::vector<ArrayPiece> written;
    bool settling = false;  // a thread is copying the result back
  };
  struct Discarded {
    std::uint64_t sequence;
    Staging::Allocation span;
  };

  Result<std::uint64_t> PostIn(const Staging::Allocation& span, const ipc::Record& record,
                               ArrayUse use, ReadySignal* signal);
  void FreeDiscarded();
  // A piece of an array of `whole` bytes, into or out of staging memory.
  void Copy(std::size_t whole, std::byte* target, const std::byte* source, std::size_t size);

  std::unique_ptr<Staging> staging_;  // never null
  Operations& operations_;
  std::mutex mutex_;
  std::condition_variable settled_;
  std::unordered_map<std::uint64_t, Flight> flights_;  // guarded by mutex_
  std::vector<Discarded> discarded_;                   // guarded by mutex_
  std::atomic<std::uint64_t> posted_ = 0;
  std::atomic<std::uint64_t> copied_size_ = 0;
};

}  // namespace headrace::client
