#include "transport/nvlink/work_layout.h"

#include "ipc/base/check.h"

namespace headrace::transport {
namespace {

bool IsInParts(const Transfer& transfer) {
  return transfer.kind == Collective::kReduceScatter || transfer.kind == Collective::kAllGather;
}

// One input that nothing divides is copied as it is, also where it is no number.
bool IsCopyOfOne(const Transfer& transfer) {
  const bool divides = transfer.reduction == Reduction::kAverage && transfer.divisor > 1;
  return transfer.members_count == 1 && !divides;
}

Work WorkOf(const Transfer& transfer) {
  if (transfer.count == 0) return Work::kNothing;
  switch (transfer.kind) {
    case Collective::kBarrier:
      return Work::kNothing;
    case Collective::kBroadcast:
    case Collective::kAllGather:
      return transfer.members_count == 1 ? Work::kNothing : Work::kCopy;
    case Collective::kReduce:
      if (!IsCopyOfOne(transfer)) return Work::kReduce;
      return transfer.output == transfer.members[0] ? Work::kNothing : Work::kCopy;
    case Collective::kReduceScatter:
      if (IsCopyOfOne(transfer) && transfer.outputs[0] != nullptr) return Work::kCopy;
      [[fallthrough]];
    case Collective::kAllReduce:
      return IsCopyOfOne(transfer) ? Work::kNothing : Work::kReduce;
  }
  return Work::kNothing;
}

}  // namespace

WorkLayout::WorkLayout(const Transfer& transfer, std::size_t piece_size) : work_(WorkOf(transfer)) {
  if (work_ == Work::kNothing) return;
  std::array<std::uint8_t, 128> places{};  // by ordinal, one more than the place
  for (std::uint32_t member = 0; member < transfer.members_count; ++member) {
    const std::int8_t device = transfer.devices[member];
    if (device == kHost) continue;
    std::uint8_t& place = places[static_cast<std::size_t>(device)];
    if (place == 0) {
      HR_CHECK(gpus_count_ < gpus_.size(), transfer.token, gpus_count_);
      gpus_[gpus_count_] = device;
      place = static_cast<std::uint8_t>(++gpus_count_);
    }
    place_of_[member] = static_cast<std::uint8_t>(place - 1);
  }
  HR_CHECK(gpus_count_ != 0, "no member is a GPU's", transfer.token);
  source_ = transfer.kind == Collective::kBroadcast ? transfer.root : 0;
  count_ = transfer.count;
  std::uint64_t piece_count = piece_size / SizeOf(transfer.dtype);
  if (IsInParts(transfer)) {
    count_ /= transfer.members_count;
    piece_count = std::max<std::uint64_t>(1, piece_count / transfer.members_count);
  }
  piece_count_ = piece_count;
  HR_CHECK(piece_count_ > 0, transfer.token, piece_size);
  pieces_count_ = (count_ + piece_count_ - 1) / piece_count_;
}

// Small pieces are one GPU's alone, and not always the same one's.
WorkLayout::Range WorkLayout::ShareOf(const Transfer& transfer, std::uint64_t begin,
                                      std::uint64_t end, std::uint32_t place) const {
  HR_CHECK(begin <= end && place < gpus_count_, begin, end, place);
  const std::uint64_t count = end - begin;
  const std::size_t size = SizeOf(transfer.dtype);
  const std::uint64_t shares =
      std::clamp<std::uint64_t>(count * size / kShareSizeMin, 1, gpus_count_);
  const std::uint64_t alignment = kShareAlignment / size;
  const std::uint64_t share =
      ((count + shares - 1) / shares + alignment - 1) / alignment * alignment;
  const std::uint64_t index = (place + gpus_count_ - transfer.token % gpus_count_) % gpus_count_;
  return {std::min(end, begin + index * share), std::min(end, begin + (index + 1) * share)};
}

// Whether the GPU brings a copy to this member.
bool WorkLayout::IsTarget(const Transfer& transfer, std::uint32_t member,
                          std::uint32_t place) const {
  if (place_of_[member] != place) return false;
  return IsInParts(transfer) || member != source_;
}

std::uint32_t WorkLayout::OutputsOf(const Transfer& transfer, std::uint32_t place) const {
  if (transfer.kind == Collective::kReduce) return place == 0 || work_ == Work::kReduce ? 1 : 0;
  if (work_ == Work::kReduce) return transfer.members_count;
  std::uint32_t count = 0;
  for (std::uint32_t member = 0; member < transfer.members_count; ++member) {
    count += IsTarget(transfer, member, place) ? 1U : 0U;
  }
  return count;
}

Buffers WorkLayout::BuffersOf(const Transfer& transfer, std::uint32_t place) const {
  Buffers buffers;
  buffers.inputs_count = transfer.members_count;
  HR_CHECK(buffers.inputs_count <= buffers.inputs.size(), transfer.token);
  const auto add_output = [&](std::byte* memory, bool packed) {
    HR_CHECK(buffers.outputs_count < buffers.outputs.size(), transfer.token);
    if (packed) buffers.packed_outputs |= std::uint64_t{1} << buffers.outputs_count;
    buffers.outputs[buffers.outputs_count++] = memory;
  };
  for (std::uint32_t member = 0; member < transfer.members_count; ++member) {
    const bool packed = transfer.devices[member] == kHost;
    buffers.inputs[member] = transfer.members[member];
    if (packed) buffers.packed_inputs |= std::uint64_t{1} << member;
    if (transfer.kind == Collective::kReduce) continue;
    if (work_ == Work::kCopy && !IsTarget(transfer, member, place)) continue;
    std::byte* const elsewhere = transfer.outputs[member];
    add_output(elsewhere != nullptr ? elsewhere : transfer.members[member],
               packed || elsewhere != nullptr);
  }
  if (transfer.kind == Collective::kReduce) {
    const bool is_root = transfer.output == transfer.members[transfer.root];
    add_output(transfer.output, !is_root || transfer.devices[transfer.root] == kHost);
  }
  return buffers;
}

}  // namespace headrace::transport
