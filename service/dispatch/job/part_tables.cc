#include "service/dispatch/job/part_tables.h"

#include <algorithm>

#include "ipc/base/check.h"

namespace headrace::service {

void PartTables::Keep(std::uint64_t sequence, std::uint32_t rank,
                      std::span<const ipc::PartRow> rows, std::byte* result) {
  HR_CHECK(rows.size() == world_size_ && rank < world_size_, rows.size(), rank);
  if (tables_.empty()) tables_.assign(ipc::kOperationsMax * world_size_, kNone);
  std::uint32_t& table = tables_[PlaceOf(sequence, rank)];
  HR_CHECK(table == kNone, sequence, rank);
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(rows_.size() / world_size_));
    rows_.resize(rows_.size() + world_size_);
    results_.push_back(nullptr);
    free_.reserve(rows_.size() / world_size_);
  }
  table = free_.back();
  free_.pop_back();
  std::ranges::copy(rows, rows_.begin() + std::ptrdiff_t{table} * world_size_);
  results_[table] = result;
  ++kept_;
}

std::span<const ipc::PartRow> PartTables::Find(std::uint64_t sequence, std::uint32_t rank) const {
  if (tables_.empty()) return {};
  const std::uint32_t table = tables_[PlaceOf(sequence, rank)];
  if (table == kNone) return {};
  return std::span(rows_).subspan(std::size_t{table} * world_size_, world_size_);
}

std::byte* PartTables::ResultOf(std::uint64_t sequence, std::uint32_t rank) const {
  if (tables_.empty()) return nullptr;
  const std::uint32_t table = tables_[PlaceOf(sequence, rank)];
  return table == kNone ? nullptr : results_[table];
}

void PartTables::Drop(std::uint64_t sequence) {
  if (kept_ == 0) return;
  for (std::uint32_t rank = 0; rank < world_size_; ++rank) {
    std::uint32_t& table = tables_[PlaceOf(sequence, rank)];
    if (table == kNone) continue;
    free_.push_back(table);
    table = kNone;
    --kept_;
  }
}

}  // namespace headrace::service
