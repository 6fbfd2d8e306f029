// The board's table of GPUs: what each is, and how much of clients' memory is mapped on it, and the
// service has there itself. Written by mapping, which maps and unmaps; its thread only.
#pragma once

#include <array>
#include <cstdint>

#include "ipc/board.h"
#include "transport/memory/gpus.h"

namespace headrace::service {

class GpuRows {
 public:
  // Shows all GPUs, as far as there are rows; null: there are none.
  GpuRows(ipc::BoardLayout& board, const transport::Gpus* gpus);

  // Memory of this GPU was mapped, or unmapped. The host's is not counted.
  void Add(std::int8_t device, std::uint64_t bytes);
  void Remove(std::int8_t device, std::uint64_t bytes);
  // The same of the service's own, which is no segment.
  void AddScratch(std::int8_t device, std::uint64_t bytes);
  void RemoveScratch(std::int8_t device, std::uint64_t bytes);

 private:
  bool IsShown(std::int8_t device) const;
  void Write(std::size_t row) { ipc::WriteRow(board_.gpus[row], rows_[row]); }

  ipc::BoardLayout& board_;
  std::array<ipc::GpuRow, ipc::kGpuRowsMax> rows_{};
};

}  // namespace headrace::service
