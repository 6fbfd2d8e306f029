// The parts tables of a job's open operations: the elements of each of this node's ranks for each
// rank, as copied from the rank's memory and checked.
//
// Memory for a further table is allocated when so many are kept for the first time, and then
// reused: nothing is allocated after a job's busiest moment.
//
// Plain data, inside Job; dispatch's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ipc/records.h"

namespace headrace::service {

class PartTables {
 public:
  explicit PartTables(std::uint32_t world_size) : world_size_(world_size) {}

  // The operation has no table of that rank yet; a row for each rank of the job. `result`: where
  // the reduction of the rank's own part goes; null: to where the part is.
  void Keep(std::uint64_t sequence, std::uint32_t rank, std::span<const ipc::PartRow> rows,
            std::byte* result);
  // Empty where there is none.
  std::span<const ipc::PartRow> Find(std::uint64_t sequence, std::uint32_t rank) const;
  // As it was kept; null where there is none.
  std::byte* ResultOf(std::uint64_t sequence, std::uint32_t rank) const;
  // Those of all ranks.
  void Drop(std::uint64_t sequence);

  std::size_t kept() const { return kept_; }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  std::size_t PlaceOf(std::uint64_t sequence, std::uint32_t rank) const {
    return (sequence % ipc::kOperationsMax) * world_size_ + rank;
  }

  std::uint32_t world_size_;
  std::vector<std::uint32_t> tables_;  // by slot and rank; empty until the first is kept
  std::vector<ipc::PartRow> rows_;     // of table i from i * world_size_ on
  std::vector<std::byte*> results_;    // by table
  std::vector<std::uint32_t> free_;
  std::size_t kept_ = 0;
};

}  // namespace headrace::service
