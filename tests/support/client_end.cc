#include "tests/support/client_end.h"

#include <atomic>
#include <cstring>
#include <utility>

namespace headrace::support {

ipc::Record OnSegment(Collective kind, DType dtype, std::uint64_t count, std::uint64_t offset) {
  ipc::Record record;
  record.kind = static_cast<std::uint8_t>(kind);
  record.dtype = static_cast<std::uint8_t>(dtype);
  record.reduction = static_cast<std::uint8_t>(Reduction::kSum);
  record.offset = offset;
  record.count = count;
  return record;
}

ipc::Record OnTensor(Collective kind, DType dtype, std::uint64_t count, TensorId tensor) {
  ipc::Record record = OnSegment(kind, dtype, count);
  record.tensor = tensor.value;
  return record;
}

ipc::Record Barrier() { return OnSegment(Collective::kBarrier, DType::kUInt8, 0); }

namespace {

ipc::Record Between(Collective kind, std::uint32_t other, std::uint64_t count, std::uint64_t tag) {
  ipc::Record record = OnSegment(kind, DType::kFloat32, count);
  record.root = other;
  record.tag = tag;
  return record;
}

}  // namespace

ipc::Record SendTo(std::uint32_t other, std::uint64_t count, std::uint64_t tag) {
  return Between(ipc::kSend, other, count, tag);
}

ipc::Record ReceiveFrom(std::uint32_t other, std::uint64_t count, std::uint64_t tag) {
  return Between(ipc::kReceive, other, count, tag);
}

std::uint32_t ClientEnd::SourceOf(std::uint64_t sequence) const {
  const std::uint64_t word = channel_.layout().words[sequence % ipc::kOperationsMax].load();
  return ipc::CompletionWord::Unpack(word).text_index;
}

ClientEnd::ClientEnd(SessionId id, JobId job, std::uint32_t rank, ipc::Channel channel)
    : id_(id),
      job_(job),
      rank_(rank),
      channel_(std::move(channel)),
      writer_(channel_.layout()),
      completions_(channel_.layout()) {}

std::uint64_t ClientEnd::Post(const ipc::Record& record, bool rude) {
  ++posted_;
  if (!rude) {
    // The doorbell is not rung: the test drives the service itself.
    [[maybe_unused]] const bool ring = writer_.Write(record);
    return posted_;
  }
  ipc::Record& slot = layout().records[posted_ % ipc::kOperationsMax];
  std::memcpy(static_cast<void*>(&slot), &record, offsetof(ipc::Record, commit));
  std::atomic_ref<std::uint64_t>(slot.commit).store(posted_, std::memory_order_release);
  return posted_;
}

std::uint64_t ClientEnd::PostApart(ipc::Record record) {
  const std::uint64_t size = record.count * SizeOf(static_cast<DType>(record.dtype));
  record.offset += posted_ % ipc::kOperationsMax * size;
  return Post(record);
}

void ClientEnd::PostGarbage(std::uint64_t commit) {
  ipc::Record& slot = layout().records[(posted_ + 1) % ipc::kOperationsMax];
  std::atomic_ref<std::uint64_t>(slot.commit).store(commit, std::memory_order_release);
}

std::span<std::byte> ClientEnd::Memory(std::uint32_t segment) const {
  const auto& memory = segments_.at(segment);
  if (const auto* arena = std::get_if<transport::DeviceArena>(&memory)) {
    return {reinterpret_cast<std::byte*>(arena->address()), arena->size()};
  }
  const Mapping& mapping = std::get<Mapping>(memory);
  return {mapping.data(), mapping.size()};
}

}  // namespace headrace::support
