#include "service/accounts/memory_accounting.h"

#include <fmt/format.h>

#include <algorithm>

#include "ipc/base/check.h"
#include "ipc/base/collective_text.h"
#include "ipc/base/foreign_text.h"
#include "ipc/sealed_memory.h"
#include "service/cluster/layouts.h"

namespace headrace::service {
namespace {

constexpr std::size_t kTensorNameMax = 255;
constexpr std::uint64_t kTensorCopies = 2;  // here and in dispatch

Error Wrong(std::string text) { return Error(Code::kInvalidArgument, std::move(text)); }

Error NoSegment(std::uint32_t id) {
  return Error(Code::kNotFound, fmt::format("this session has no segment {}", id));
}

Status CheckName(std::string_view name) {
  if (name.size() > kTensorNameMax) {
    return Wrong(
        fmt::format("name has {} bytes, at most {} are allowed", name.size(), kTensorNameMax));
  }
  // Names end up in logs and tables, a line each.
  if (HasControls(name)) return Wrong("name has control characters in it");
  return {};
}

}  // namespace

Result<SegmentId> MemoryAccounting::ReserveSegment(std::uint64_t size, std::uint64_t bytes,
                                                   Kind kind) {
  // A segment on a GPU may be as small as a tensor.
  const std::uint64_t granularity = kind == Kind::kHost ? ipc::kPageSize : 1;
  if (size == 0 || size % granularity != 0) {
    return Wrong(fmt::format("a segment of {} bytes: the size must be a positive multiple of {}",
                             size, granularity));
  }
  HR_CHECK(segment_bytes_ <= ipc::kSegmentSizeMax, segment_bytes_);
  if (bytes > ipc::kSegmentSizeMax - segment_bytes_) {
    return Error(Code::kExhausted,
                 fmt::format("a segment of {} bytes beside {} registered: a session may have {} in "
                             "all",
                             bytes, segment_bytes_, ipc::kSegmentSizeMax));
  }
  if (segments_.size() >= kSegmentsMax) {
    return Error(
        Code::kExhausted,
        fmt::format("{} segments are registered, a session may have no more", segments_.size()));
  }
  std::uint32_t id = 0;
  while (segments_.contains(id)) ++id;
  segments_.emplace(id, Segment{.size = size, .bytes = bytes, .kind = kind});
  segment_bytes_ += bytes;
  return SegmentId{id};
}

void MemoryAccounting::ConfirmSegment(SegmentId id) { segments_.at(id.value).usable = true; }

Status MemoryAccounting::BeginRelease(SegmentId id) {
  const auto found = segments_.find(id.value);
  if (found == segments_.end() || !found->second.usable) return NoSegment(id.value);
  found->second.usable = false;
  return {};
}

void MemoryAccounting::CancelRelease(SegmentId id) { ConfirmSegment(id); }

void MemoryAccounting::EraseSegment(SegmentId id) {
  const auto found = segments_.find(id.value);
  if (found == segments_.end()) return;
  HR_CHECK(segment_bytes_ >= found->second.bytes, id.value, segment_bytes_);
  segment_bytes_ -= found->second.bytes;
  segments_.erase(found);
}

std::uint64_t MemoryAccounting::BytesOf(SegmentId id) const {
  const auto found = segments_.find(id.value);
  return found == segments_.end() ? 0 : found->second.bytes;
}

Status MemoryAccounting::CheckTensor(const Tensor& tensor) const {
  if (Status status = CheckName(tensor.name); !status) return status;
  if (!IsDType(static_cast<std::uint8_t>(tensor.dtype))) {
    return Wrong(UnknownDTypeText(static_cast<unsigned>(tensor.dtype)));
  }
  const auto found = segments_.find(tensor.segment.value);
  if (found == segments_.end() || !found->second.usable) return NoSegment(tensor.segment.value);
  const std::uint64_t size = found->second.size;
  const std::uint64_t element = headrace::SizeOf(tensor.dtype);
  if (tensor.count == 0) return Wrong("count is 0, a tensor has at least one element");
  if (tensor.offset % element != 0) {
    return Wrong(fmt::format("offset {} is not a multiple of {}, the size of {}", tensor.offset,
                             element, Name(tensor.dtype)));
  }
  // Without a sum or product that could overflow.
  if (tensor.offset > size || tensor.count > (size - tensor.offset) / element) {
    return Wrong(fmt::format("offset {} with count {} of {} reaches beyond segment {} of {} bytes",
                             tensor.offset, tensor.count, Name(tensor.dtype), tensor.segment.value,
                             size));
  }
  return {};
}

std::size_t MemoryAccounting::FindRoom(std::size_t count) const {
  if (taken_.size() + count <= kTensorsMax) return taken_.size();
  std::size_t free = 0;
  for (std::size_t i = 0; i < kTensorsMax; ++i) {
    const bool taken = i < taken_.size() && taken_[i];
    free = taken ? 0 : free + 1;
    if (free == count) return i + 1 - count;
  }
  return kTensorsMax;
}

Status MemoryAccounting::CheckCount(std::size_t count) const {
  if (count == 0) return Wrong("no tensors were given");
  if (count <= kTensorsMax - tensors_count_) return {};
  return Error(Code::kExhausted,
               fmt::format("{} tensors beside {} registered: a session may have {}", count,
                           tensors_count_, kTensorsMax));
}

Status MemoryAccounting::CheckTensors(std::span<const Tensor> tensors, std::size_t index) const {
  for (const Tensor& tensor : tensors) {
    if (Status status = CheckTensor(tensor); !status) {
      return status.error().Within(tensor.name.empty() || !CheckName(tensor.name)
                                       ? fmt::format("tensor {}", index)
                                       : fmt::format("tensor {} ({})", index, tensor.name));
    }
    ++index;
  }
  return {};
}

Result<TensorId> MemoryAccounting::NumberTensors(std::size_t count) {
  if (Status status = CheckCount(count); !status) return status.error();
  const std::size_t first = FindRoom(count);
  if (first == kTensorsMax) {
    return Error(Code::kExhausted,
                 fmt::format("no {} free tensor numbers in a row: release tensors in the batches "
                             "in which they were registered",
                             count));
  }
  Claim(first, count);
  if (tensors_.size() < taken_.size()) {
    // All that there may ever be, once there are many: growing would move every one of them.
    if (taken_.size() > kTensorsMax / 64) tensors_.reserve(kTensorsMax);
    tensors_.resize(taken_.size());
  }
  return TensorId{static_cast<std::uint32_t>(first)};
}

void MemoryAccounting::PlaceTensors(TensorId first, std::span<const Tensor> tensors) {
  HR_CHECK(first.value + tensors.size() <= tensors_.size(), first.value, tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    Tensor& place = tensors_[first.value + i];
    // Something is there if the client released numbers that it had guessed, before these came.
    names_bytes_ -= place.name.size();
    place = tensors[i];
    names_bytes_ += place.name.size();
  }
}

Result<TensorId> MemoryAccounting::AddTensors(std::span<const Tensor> tensors) {
  if (Status status = CheckCount(tensors.size()); !status) return status.error();
  if (Status status = CheckTensors(tensors, 0); !status) return status.error();
  Result<TensorId> first = NumberTensors(tensors.size());
  if (first) PlaceTensors(*first, tensors);
  return first;
}

void MemoryAccounting::Claim(std::size_t first, std::size_t count) {
  taken_.resize(std::max(taken_.size(), first + count));
  std::fill_n(taken_.begin() + static_cast<std::ptrdiff_t>(first), count, true);
  tensors_count_ += count;
  HR_CHECK(tensors_count_ <= taken_.size() && taken_.size() <= kTensorsMax, tensors_count_);
}

std::uint64_t MemoryAccounting::HeldBytes() const {
  return kTensorCopies * (tensors_.size() * sizeof(Tensor) + names_bytes_);
}

std::uint64_t MemoryAccounting::HeldBytesWith(std::span<const Tensor> more) const {
  const std::size_t places = std::max(tensors_.size(), FindRoom(more.size()) + more.size());
  std::uint64_t names = names_bytes_;
  for (const Tensor& tensor : more) names += tensor.name.size();
  return kTensorCopies * (places * sizeof(Tensor) + names);
}

Status MemoryAccounting::RemoveTensors(TensorId first, std::uint32_t count) {
  if (Status status = CheckRemoval(first, count); !status) return status;
  for (std::size_t id = first.value; id < std::size_t{first.value} + count; ++id) {
    taken_[id] = false;
    if (id >= tensors_.size()) continue;  // numbered, and not placed yet
    HR_CHECK(names_bytes_ >= tensors_[id].name.size(), id, names_bytes_);
    names_bytes_ -= tensors_[id].name.size();
    tensors_[id] = Tensor{};
  }
  while (!taken_.empty() && !taken_.back()) taken_.pop_back();
  HR_CHECK(tensors_count_ >= count, tensors_count_, count);
  tensors_count_ -= count;
  return {};
}

Status MemoryAccounting::CheckRemoval(TensorId first, std::uint32_t count) const {
  if (count == 0) return Wrong("no tensors were named");
  // Bounded by what is registered, whatever count says.
  for (std::uint64_t id = first.value; id < std::uint64_t{first.value} + count; ++id) {
    if (!IsTaken(id)) {
      return Error(Code::kNotFound, fmt::format("this session has no tensor {}", id));
    }
    if (id >= layout_first_ && id - layout_first_ < layout_count_) {
      return Wrong(
          fmt::format("tensor {} is one of the session's layout, which lasts as long as "
                      "the session",
                      id));
    }
  }
  return {};
}

Result<Layout> MemoryAccounting::MakeLayout(TensorId first, std::uint32_t count,
                                            Reduction reduction) const {
  if (layout_count_ > 0) {
    return Error(Code::kAlreadyExists,
                 fmt::format("this session has a layout of tensors {} to {}: it has one, for as "
                             "long as it lasts",
                             layout_first_, layout_first_ + layout_count_ - 1));
  }
  if (count == 0 || count > kLayoutTensorsMax) {
    return Wrong(
        fmt::format("a layout of {} tensors: 1 to {} are possible", count, kLayoutTensorsMax));
  }
  std::uint64_t lowest = UINT64_MAX;
  for (std::uint64_t id = first.value; id < std::uint64_t{first.value} + count; ++id) {
    if (!IsTaken(id)) {
      return Error(Code::kNotFound, fmt::format("this session has no tensor {}", id));
    }
    lowest = std::min(lowest, tensors_[id].offset);
  }
  const Tensor& model = tensors_[first.value];
  Layout layout{.reduction = reduction, .tensors = {}};
  layout.tensors.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    const Tensor& tensor = tensors_[first.value + i];
    layout.tensors.push_back({.name = tensor.name,
                              .offset = tensor.offset - lowest,
                              .count = tensor.count,
                              .dtype = tensor.dtype});
    if (tensor.segment != model.segment) {
      return Wrong(
          fmt::format("{} lies in segment {}, tensor 0 in segment {}: gradients of a "
                      "layout lie in one",
                      DescribeTensor(layout, i), tensor.segment.value, model.segment.value));
    }
  }
  if (Status status = CheckLayout(layout); !status) return status.error();
  layout.names_hash = HashNames(layout);
  return layout;
}

Status MemoryAccounting::CheckResiduals(TensorId first, const Layout& layout,
                                        const ResidualsPlace& place) const {
  HR_CHECK(IsTaken(first.value), first.value);
  const Tensor& tensor = tensors_[first.value];
  const SegmentId id = place.segment.value_or(tensor.segment);
  const auto found = segments_.find(id.value);
  if (found == segments_.end() || !found->second.usable) return NoSegment(id.value);
  if (found->second.kind == Kind::kDevice) {
    return Wrong(
        fmt::format("residuals in segment {}, which is on a GPU: they are kept in the host's "
                    "memory (residuals_segment)",
                    id.value));
  }
  const std::uint64_t size = found->second.size;
  if (place.factors_rank > kRankMax) {
    return Wrong(fmt::format("room for right factors of rank {}: 0 to {} are possible",
                             place.factors_rank, kRankMax));
  }
  const std::uint64_t length = RightFactorOffsets(layout, place.factors_rank).back();
  const bool behind = id == tensor.segment;
  const std::uint64_t end =
      behind ? tensor.offset - layout.tensors.front().offset + EndOf(layout) : std::uint64_t{0};
  if (place.offset % kResidualsAlignment == 0 && place.offset >= end && place.offset <= size &&
      length <= size - place.offset) {
    return {};
  }
  const std::string behind_what =
      behind ? fmt::format("behind the gradients, which end at byte {} of {}", end, size)
             : fmt::format("of a segment of {}", size);
  return Wrong(
      fmt::format("residuals from byte {} on: they take {} bytes {}, and begin at a multiple of {}",
                  place.offset, length, behind_what, kResidualsAlignment));
}

bool MemoryAccounting::IsOnDevice(TensorId tensor) const {
  HR_CHECK(IsTaken(tensor.value), tensor.value);
  return segments_.at(tensors_[tensor.value].segment.value).kind == Kind::kDevice;
}

void MemoryAccounting::KeepLayout(TensorId first, std::uint32_t count) {
  HR_CHECK(layout_count_ == 0 && count > 0, layout_count_, count);
  layout_first_ = first.value;
  layout_count_ = count;
}

}  // namespace headrace::service
