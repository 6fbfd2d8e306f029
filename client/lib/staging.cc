#include "client/lib/staging.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::client {

Result<Staging::Allocation> Staging::Allocate(std::size_t size) {
  Allocation span;
  {
    std::lock_guard lock(mutex_);
    if (TryAllocate(size, span)) return span;
  }
  // Callers that need more queue up here; those that find room, or give it back, pass by.
  std::lock_guard growing(growing_);
  while (true) {
    {
      std::lock_guard lock(mutex_);
      if (TryAllocate(size, span)) return span;
    }
    if (Status status = Grow(size); !status) return status.error();
  }
}

bool Staging::TryAllocate(std::size_t size, Allocation& span) {
  for (Segment& segment : segments_) {
    if (const auto offset = segment.spans.Allocate(size)) {
      HR_CHECK(*offset + size <= segment.memory.mapping.size(), segment.id, *offset, size);
      span = {segment.id, *offset, size, segment.memory.mapping.data() + *offset};
      return true;
    }
  }
  return false;
}

std::list<Staging::Segment> Staging::RemoveUnused() {
  std::list<Segment> unused;
  for (auto segment = segments_.begin(); segment != segments_.end();) {
    const auto next = std::next(segment);
    if (segment->spans.IsWhole()) unused.splice(unused.end(), segments_, segment);
    segment = next;
  }
  return unused;
}

Status Staging::Grow(std::size_t size) {
  if (size > ipc::kSegmentSizeMax / 2) {
    return Error(Code::kInvalidArgument,
                 "staging memory of " + std::to_string(size) + " bytes: no array is that large");
  }
  std::list<Segment> unused;
  {
    std::lock_guard lock(mutex_);
    unused = RemoveUnused();
  }
  for (const Segment& segment : unused) {
    if (Status status = control_.ReleaseSegment(segment.id); !status) return status;
  }
  unused.clear();
  // Powers of two: a training loop's largest array settles the size after a few steps.
  const std::size_t length = std::bit_ceil(std::max(size, kSegmentSizeMin));
  Result<ipc::SealedMemory> memory = ipc::CreateSealedMemory("headrace-staging", length);
  if (!memory) return memory.error();
  HR_CHECK(memory->mapping.size() == length && length >= size, length, size);
  if (Status status = ipc::Populate(*memory); !status) return status.error();
  Result<std::uint32_t> id = control_.RegisterSegment(memory->fd.get(), length);
  if (!id) return id.error().Within("staging memory");
  std::lock_guard lock(mutex_);
  const auto same = [&id](const Segment& segment) { return segment.id == *id; };
  if (std::ranges::any_of(segments_, same)) {
    return Error(Code::kInternal,
                 fmt::format("the service gave staging memory number {} twice", *id));
  }
  segments_.push_back(Segment{*id, std::move(memory).value(), SpanAllocator(length)});
  return {};
}

void Staging::Free(const Allocation& span) {
  std::lock_guard lock(mutex_);
  const auto mine = [&span](const Segment& segment) { return segment.id == span.segment; };
  const auto segment = std::find_if(segments_.begin(), segments_.end(), mine);
  HR_CHECK(segment != segments_.end(), span.segment);
  HR_CHECK(span.data == segment->memory.mapping.data() + span.offset, span.segment, span.offset);
  segment->spans.Free(span.offset, span.size);
}

std::size_t Staging::size() const {
  std::lock_guard lock(mutex_);
  std::size_t bytes = 0;
  for (const Segment& segment : segments_) bytes += segment.spans.size();
  return bytes;
}

}  // namespace headrace::client
