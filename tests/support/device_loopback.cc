#include "tests/support/device_loopback.h"

#include <algorithm>
#include <cstring>

#include "ipc/base/check.h"
#include "tests/support/loopback/reference.h"

namespace headrace::support {
namespace {

// Calls `visit` with each contiguous stretch of the transfer's part of the runs.
template <typename Visit>
void ForEachStretch(const transport::Transfer& transfer, Visit visit) {
  const std::uint64_t element = SizeOf(transfer.dtype);
  std::uint64_t skip = transfer.skip;
  std::uint64_t left = transfer.count;
  std::size_t packed = 0;
  for (const transport::Run& run : transfer.runs) {
    const std::uint64_t skipped = std::min(skip, run.count);
    skip -= skipped;
    const std::uint64_t count = std::min(run.count - skipped, left);
    visit(run.offset + skipped * element, packed, count * element);
    packed += count * element;
    left -= count;
  }
  HR_CHECK(left == 0, left);
}

}  // namespace

DeviceLoopback::DeviceLoopback() {
  capabilities_ = {.name = "device-loopback",
                   .collectives = 0xffffffff,
                   .transfers_max = 16,
                   .piece_size = 4096,
                   .device_memory = true};
}

transport::PostResult DeviceLoopback::Post(const transport::Transfer& transfer, TimeNs) {
  const auto devices = std::span(transfer.devices).first(transfer.members_count);
  HR_CHECK(std::ranges::any_of(devices, [](std::int8_t device) { return device >= 0; }));
  open_.push_back(transfer);
  taken.push_back(transfer);
  return transport::PostResult::kAccepted;
}

void DeviceLoopback::Cancel(std::uint64_t token) { cancelled_.push_back(token); }

bool DeviceLoopback::DoWork(TimeNs now, std::vector<transport::Completion>& completions) {
  for (const std::uint64_t token : cancelled_) {
    const auto found = std::ranges::find(open_, token, &transport::Transfer::token);
    if (found == open_.end()) continue;
    open_.erase(found);
    completions.push_back(
        {.token = token, .code = Code::kCancelled, .begin_ns = now, .end_ns = now});
  }
  cancelled_.clear();
  if (stopped || open_.empty()) return !completions.empty();
  Carry(open_.front());
  completions.push_back({.token = open_.front().token, .begin_ns = now, .end_ns = now});
  open_.pop_front();
  return true;
}

// GPUs' memory in runs is packed, carried, and put back; the host's is in one piece already.
void DeviceLoopback::Carry(const transport::Transfer& transfer) {
  if (transfer.runs.empty()) return transport::ReferenceMove(transfer, 0, transfer.count);
  transport::Transfer packed = transfer;
  packed.runs = {};
  packed.skip = 0;
  std::vector<std::vector<std::byte>> buffers(transfer.members_count);
  for (std::uint32_t i = 0; i < transfer.members_count; ++i) {
    if (transfer.devices[i] == transport::kHost) continue;
    buffers[i].resize(transfer.Bytes());
    packed.members[i] = buffers[i].data();
    ForEachStretch(transfer, [&](std::uint64_t offset, std::size_t at, std::size_t bytes) {
      std::memcpy(buffers[i].data() + at, transfer.members[i] + offset, bytes);
    });
  }
  transport::ReferenceMove(packed, 0, packed.count);
  for (std::uint32_t i = 0; i < transfer.members_count; ++i) {
    if (transfer.devices[i] == transport::kHost) continue;
    ForEachStretch(transfer, [&](std::uint64_t offset, std::size_t at, std::size_t bytes) {
      std::memcpy(transfer.members[i] + offset, buffers[i].data() + at, bytes);
    });
  }
}

}  // namespace headrace::support
