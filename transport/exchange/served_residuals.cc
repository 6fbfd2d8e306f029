#include "transport/exchange/served_residuals.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>

#include "ipc/base/check.h"

namespace headrace::transport {

template <typename KeptOf, typename Visit>
void ServedResiduals::ForEachPart(KeptOf& kept, std::span<const Run> runs, Visit visit) {
  std::uint64_t element = 0;
  for (const Run& run : runs) {
    std::uint64_t begin = run.offset / sizeof(float);
    for (std::uint64_t left = run.count; left > 0;) {
      const std::uint64_t number = begin / kSegmentCount;
      const std::uint64_t first = begin % kSegmentCount;
      const std::uint64_t count = std::min<std::uint64_t>(left, kSegmentCount - first);
      const auto found = kept.segments.find(number);
      Segment* const segment = found == kept.segments.end() ? nullptr : found->second.get();
      visit(segment, number, first, count, element);
      begin += count;
      element += count;
      left -= count;
    }
  }
}

void ServedResiduals::Open(std::uint32_t group) {
  const std::lock_guard lock(mutex_);
  ++groups_[group].lanes_count;
}

void ServedResiduals::Close(std::uint32_t group) {
  const std::lock_guard lock(mutex_);
  const auto found = groups_.find(group);
  HR_CHECK(found != groups_.end(), group);
  if (--found->second.lanes_count > 0) return;
  bytes_ -= found->second.segments.size() * kSegmentBytes;
  groups_.erase(found);
}

ServedResiduals::Use ServedResiduals::UseOf(std::uint32_t group) const {
  const std::lock_guard lock(mutex_);
  const auto found = groups_.find(group);
  if (found == groups_.end()) return {};
  Use use = found->second.use;
  use.kept_bytes = found->second.segments.size() * kSegmentBytes;
  return use;
}

void ServedResiduals::OnEncoded(std::uint32_t group, std::uint64_t bytes, double sum_squares,
                                double residual_squares) {
  constexpr double kKept = 0.99;
  const std::lock_guard lock(mutex_);
  Use& use = groups_.at(group).use;
  use.encoded_bytes += bytes;
  use.sum_squares = kKept * use.sum_squares + sum_squares;
  use.residual_squares = kKept * use.residual_squares + residual_squares;
}

bool ServedResiduals::KeepsAny(std::uint32_t group, std::span<const Run> runs) const {
  const std::lock_guard lock(mutex_);
  bool any = false;
  ForEachPart(groups_.at(group), runs,
              [&any](const Segment* segment, std::uint64_t /*number*/, std::uint64_t /*first*/,
                     std::uint64_t /*count*/,
                     std::uint64_t /*element*/) { any = any || segment != nullptr; });
  return any;
}

void ServedResiduals::Load(std::uint32_t group, std::span<const Run> runs, float* values) const {
  const std::lock_guard lock(mutex_);
  ForEachPart(groups_.at(group), runs,
              [values](const Segment* segment, std::uint64_t /*number*/, std::uint64_t first,
                       std::uint64_t count, std::uint64_t element) {
                if (segment == nullptr) {
                  std::fill_n(values + element, count, 0.0F);
                } else {
                  std::memcpy(values + element, segment->data() + first, count * sizeof(float));
                }
              });
}

std::uint64_t ServedResiduals::LackingBytes(const Kept& kept, std::span<const Run> runs) const {
  std::set<std::uint64_t> lacking;
  ForEachPart(kept, runs,
              [&lacking](const Segment* segment, std::uint64_t number, std::uint64_t /*first*/,
                         std::uint64_t /*count*/, std::uint64_t /*element*/) {
                if (segment == nullptr) lacking.insert(number);
              });
  return lacking.size() * kSegmentBytes;
}

Status ServedResiduals::Store(std::uint32_t group, std::span<const Run> runs, const float* values) {
  const std::lock_guard lock(mutex_);
  Kept& kept = groups_.at(group);
  const std::uint64_t lacking = LackingBytes(kept, runs);
  if (bytes_max_ != 0 && lacking > bytes_max_ - std::min(bytes_, bytes_max_)) {
    return Error(Code::kExhausted,
                 "what encodings leave out of this server's sums takes more than " +
                     std::to_string(bytes_max_) + " bytes, and " + std::to_string(bytes_) +
                     " are taken: raise memory_per_uid there, or compress fewer gradients");
  }
  bytes_ += lacking;
  ForEachPart(kept, runs,
              [&](Segment* segment, std::uint64_t number, std::uint64_t first, std::uint64_t count,
                  std::uint64_t element) {
                if (segment == nullptr) {
                  std::unique_ptr<Segment>& made = kept.segments[number];
                  made = std::make_unique<Segment>();
                  segment = made.get();
                }
                std::memcpy(segment->data() + first, values + element, count * sizeof(float));
              });
  return {};
}

void ServedResiduals::Forget(std::uint32_t group, std::span<const Run> runs) {
  const std::lock_guard lock(mutex_);
  ForEachPart(groups_.at(group), runs,
              [](Segment* segment, std::uint64_t /*number*/, std::uint64_t first,
                 std::uint64_t count, std::uint64_t /*element*/) {
                if (segment != nullptr)
                  std::fill_n(segment->begin() + static_cast<std::ptrdiff_t>(first), count, 0.0F);
              });
}

std::uint64_t ServedResiduals::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace headrace::transport
