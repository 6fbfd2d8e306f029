#include "service/mapping/gpu_rows.h"

#include <algorithm>

namespace headrace::service {
namespace {

ipc::GpuRow RowOf(const transport::CudaDevice& device) {
  ipc::GpuRow row{};
  row.in_use = 1;
  row.stream_words = device.stream_words ? 1 : 0;
  row.memory_size = device.memory_size;
  row.capability_major = static_cast<std::uint32_t>(device.capability_major);
  row.capability_minor = static_cast<std::uint32_t>(device.capability_minor);
  row.mps = device.mps ? 1 : 0;
  row.multicast = device.multicast ? 1 : 0;
  std::ranges::copy(device.uuid, std::begin(row.uuid));
  ipc::SetText(row.name, device.name);
  return row;
}

}  // namespace

GpuRows::GpuRows(ipc::BoardLayout& board, const transport::Gpus* gpus) : board_(board) {
  if (gpus == nullptr) return;
  for (std::size_t i = 0; i < std::min(gpus->count(), rows_.size()); ++i) {
    rows_[i] = RowOf(gpus->devices()[i]);
    Write(i);
  }
}

bool GpuRows::IsShown(std::int8_t device) const {
  return device >= 0 && static_cast<std::size_t>(device) < rows_.size();
}

void GpuRows::Add(std::int8_t device, std::uint64_t bytes) {
  if (!IsShown(device)) return;
  const auto row = static_cast<std::size_t>(device);
  rows_[row].held_bytes += bytes;
  ++rows_[row].segments;
  Write(row);
}

void GpuRows::AddScratch(std::int8_t device, std::uint64_t bytes) {
  if (!IsShown(device)) return;
  rows_[static_cast<std::size_t>(device)].held_bytes += bytes;
  Write(static_cast<std::size_t>(device));
}

void GpuRows::RemoveScratch(std::int8_t device, std::uint64_t bytes) {
  if (!IsShown(device)) return;
  rows_[static_cast<std::size_t>(device)].held_bytes -= bytes;
  Write(static_cast<std::size_t>(device));
}

void GpuRows::Remove(std::int8_t device, std::uint64_t bytes) {
  if (!IsShown(device)) return;
  const auto row = static_cast<std::size_t>(device);
  rows_[row].held_bytes -= bytes;
  --rows_[row].segments;
  Write(row);
}

}  // namespace headrace::service
