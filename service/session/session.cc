#include "service/session/session.h"

#include <algorithm>

#include "ipc/base/check.h"

namespace headrace::service {

Session::Session(SessionIdentity identity, ipc::Channel channel, UniqueFd doorbell)
    : identity_(std::move(identity)),
      channel_(std::move(channel)),
      doorbell_(std::move(doorbell)),
      reader_(channel_.layout()),
      completions_(channel_.layout()) {}

void Session::AddSegment(SegmentId id, SegmentMemory memory) {
  segment_bytes_ += memory.size();
  const bool added = segments_.emplace(id, std::move(memory)).second;
  HR_CHECK(added, id.value);
}

SegmentMemory Session::RemoveSegment(SegmentId id) {
  const auto found = segments_.find(id);
  if (found == segments_.end()) return {};
  SegmentMemory memory = std::move(found->second);
  segments_.erase(found);
  HR_CHECK(segment_bytes_ >= memory.size(), id.value, segment_bytes_);
  segment_bytes_ -= memory.size();
  return memory;
}

std::vector<SegmentMemory> Session::RemoveSegments() {
  std::vector<SegmentMemory> memory;
  std::uint64_t bytes = 0;
  for (auto& [id, segment] : segments_) {
    bytes += segment.size();
    memory.push_back(std::move(segment));
  }
  HR_CHECK(bytes == segment_bytes_, identity_.id.value, bytes, segment_bytes_);
  segments_.clear();
  segment_bytes_ = 0;
  return memory;
}

std::span<std::byte> Session::FindSegment(SegmentId id) const {
  const auto found = segments_.find(id);
  if (found == segments_.end()) return {};
  return found->second.bytes();
}

std::int8_t Session::DeviceOf(SegmentId id) const {
  const auto found = segments_.find(id);
  return found == segments_.end() ? transport::kHost : found->second.device();
}

bool Session::HasDeviceMemory() const {
  return std::ranges::any_of(
      segments_, [](const auto& entry) { return entry.second.device() != transport::kHost; });
}

Session::DeviceUse Session::UseOf(std::int8_t device) const {
  DeviceUse use;
  for (const auto& [id, memory] : segments_) {
    if (memory.device() != device) continue;
    use.bytes += memory.size();
    ++use.segments;
  }
  return use;
}

void Session::AddTensors(TensorId first, std::vector<Tensor> tensors) {
  HR_CHECK(first.value + tensors.size() <= kTensorsMax, first.value, tensors.size());
  const std::size_t end = first.value + tensors.size();
  if (tensors_.size() < end) tensors_.resize(end);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    HR_CHECK(tensors[i].count > 0, first.value, i);  // 0 marks a number as free
    Tensor& place = tensors_[first.value + i];
    if (place.count == 0) ++tensors_count_;
    place = std::move(tensors[i]);
  }
  HR_CHECK(tensors_count_ <= tensors_.size(), tensors_count_, tensors_.size());
}

void Session::RemoveTensors(TensorId first, std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::size_t index = std::size_t{first.value} + i;
    if (index >= tensors_.size() || tensors_[index].count == 0) continue;
    tensors_[index] = Tensor{};
    HR_CHECK(tensors_count_ > 0, index);
    --tensors_count_;
  }
}

const Tensor* Session::FindTensor(TensorId id) const {
  if (id.value >= tensors_.size() || tensors_[id.value].count == 0) return nullptr;
  return &tensors_[id.value];
}

bool Session::HasTensorsIn(SegmentId segment) const {
  // A layout stays, whatever becomes of its tensors' names.
  if (gradients_ && gradients_->segment == segment) return true;
  if (gradients_ && gradients_->residuals_segment == segment) return true;
  return std::any_of(tensors_.begin(), tensors_.end(), [segment](const Tensor& tensor) {
    return tensor.count != 0 && tensor.segment == segment;
  });
}

std::uint64_t EndOf(const Layout& layout) {
  std::uint64_t end = 0;
  for (const LayoutTensor& each : layout.tensors) end = std::max(end, each.End());
  return end;
}

std::vector<std::uint64_t> RightFactorOffsets(const Layout& layout, std::uint32_t factors_rank) {
  std::uint64_t end = EndOf(layout);
  if (factors_rank != 0)
    end = (end + kResidualsAlignment - 1) / kResidualsAlignment * kResidualsAlignment;
  std::vector<std::uint64_t> offsets;
  for (const LayoutTensor& each : layout.tensors) {
    offsets.push_back(end);
    end += RightFactorRoom(factors_rank, each.rows, each.count) * sizeof(float);
  }
  offsets.push_back(end);
  return offsets;
}

// Control has checked the layout against what was registered; a client that releases things at the
// same time gets an error and not a crash.
Status Session::SetLayout(TensorId first, std::shared_ptr<const Layout> layout,
                          const ResidualsPlace& residuals) {
  HR_CHECK(layout != nullptr, identity_.id.value, first.value);
  if (layout->tensors.empty()) return Error(Code::kInvalidArgument, "the layout has no tensors");
  const Tensor* const tensor = FindTensor(first);
  const std::span<std::byte> memory =
      tensor != nullptr ? FindSegment(tensor->segment) : std::span<std::byte>();
  const std::uint64_t before = layout->tensors.front().offset;
  const std::uint64_t end = EndOf(*layout);
  std::vector<std::uint64_t> offsets = RightFactorOffsets(*layout, residuals.factors_rank);
  const std::span<std::byte> left_out =
      residuals.segment ? FindSegment(*residuals.segment) : memory;
  // A number may have been given to another segment since control looked, and to one on a GPU,
  // which nobody may touch from here.
  const bool on_gpu = tensor != nullptr && !residuals.is_nowhere() &&
                      DeviceOf(residuals.segment.value_or(tensor->segment)) != transport::kHost;
  if (gradients_ || memory.empty() || on_gpu || tensor->offset < before ||
      end > memory.size() - (tensor->offset - before) || residuals.offset > left_out.size() ||
      (!residuals.is_nowhere() && offsets.back() > left_out.size() - residuals.offset)) {
    return Error(Code::kInvalidArgument,
                 "the layout's tensors or their segment were released while it was handed in");
  }
  gradients_ =
      Gradients{.layout = std::move(layout),
                .first = first,
                .segment = tensor->segment,
                .base = memory.data() + (tensor->offset - before),
                .device = DeviceOf(tensor->segment),
                .residuals = residuals.is_nowhere() ? nullptr : left_out.data() + residuals.offset,
                .residuals_segment = residuals.segment,
                .factors_rank = residuals.factors_rank,
                .factor_offsets = std::move(offsets)};
  return {};
}

}  // namespace headrace::service
