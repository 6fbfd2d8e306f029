#include "service/dispatch/job/overlap.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>

namespace headrace::service {
namespace {

// The driver's addresses are integers of a pointer's size, and nobody looks behind these.
std::uint64_t AddressOf(const std::byte* data) { return reinterpret_cast<std::uint64_t>(data); }

OpenRange RangeOfGradient(const Session& session, std::uint32_t tensor) {
  const Session::Gradients& gradients = *session.gradients();
  const LayoutTensor& gradient = gradients.layout->tensors[tensor];
  const std::uint64_t begin = AddressOf(gradients.base) + gradient.offset;
  return {.begin = begin, .end = begin + gradient.Bytes(), .written = true};
}

// "64 bytes overlap (bytes 128 to 191 of segment 0)"
std::string DescribeShared(const OpenRange& first, const OpenRange& second,
                           const Session& session) {
  const std::uint64_t begin = std::max(first.begin, second.begin);
  const std::uint64_t bytes = first.Shared(second);
  for (std::uint32_t segment = 0; segment < kSegmentsMax; ++segment) {
    const std::span<const std::byte> memory = session.FindSegment(SegmentId{segment});
    const std::uint64_t base = AddressOf(memory.data());
    if (begin < base || begin >= base + memory.size()) continue;
    return fmt::format("{} bytes overlap (bytes {} to {} of segment {})", bytes, begin - base,
                       begin - base + bytes - 1, segment);
  }
  return fmt::format("{} bytes overlap", bytes);
}

std::string DescribePost(const OperationSpec& spec, const Session& session) {
  const Tensor* const tensor = session.FindTensor(spec.tensor);
  if (tensor == nullptr) return Describe(spec);
  return fmt::format("{} in tensor {} \"{}\"", Describe(spec), spec.tensor.value, tensor->name);
}

Failure Overlap(const std::string& post, const std::string& open, const std::string& shared) {
  return {Code::kInvalidArgument,
          fmt::format("{}, whose memory {} uses until it ends: {}; wait for that to end first, or "
                      "use other memory",
                      post, open, shared)};
}

// Gradients are few, and operations on the layout's own memory are rare.
std::optional<std::uint32_t> FindGradient(const Job& job, std::uint32_t rank,
                                          const Session& session, const OpenRange& range) {
  if (!job.gradients || !job.gradients->AnyOpen() || session.gradients() == nullptr) return {};
  const OpenRange all{.begin = AddressOf(session.gradients()->base),
                      .end = AddressOf(session.gradients()->base) + job.gradients->bytes()};
  if (!range.Overlaps(all)) return {};
  for (std::uint32_t tensor = 0; tensor < job.gradients->count(); ++tensor) {
    if ((job.gradients->posts(tensor).ready() >> rank & 1U) == 0) continue;
    if (range.Overlaps(RangeOfGradient(session, tensor))) return tensor;
  }
  return {};
}

}  // namespace

void UsedRanges::Add(const OpenRange& range) {
  if (range.begin < range.end) ranges[count++] = range;
}

UsedRanges RangesOf(const Job& job, const OperationSpec& spec, std::uint32_t rank) {
  const auto range = [&spec](std::uint64_t begin, std::uint64_t end, bool written) {
    const std::uint64_t base = AddressOf(spec.data);
    const std::uint64_t size = SizeOf(spec.dtype);
    return OpenRange{.begin = base + begin * size,
                     .end = base + end * size,
                     .sequence = spec.sequence,
                     .written = written};
  };
  UsedRanges used;
  if (MovesInMessages(spec.kind)) {
    const PartExtents extents = ExtentsOf(job.part_tables().Find(spec.sequence, rank));
    used.Add(range(extents.sent.begin, extents.sent.end, false));
    used.Add(range(extents.received.begin, extents.received.end, true));
    return used;
  }
  if (const std::byte* const result = job.part_tables().ResultOf(spec.sequence, rank);
      spec.kind == Collective::kReduceScatter && result != nullptr) {
    const ipc::PartRow own = job.part_tables().Find(spec.sequence, rank)[rank];
    used.Add(range(0, spec.count, false));
    used.Add({.begin = AddressOf(result),
              .end = AddressOf(result) + own.received_count * SizeOf(spec.dtype),
              .sequence = spec.sequence,
              .written = true});
    return used;
  }
  bool is_only_read = false;
  if (ipc::IsSendOrReceive(spec.kind)) is_only_read = spec.target != rank;
  if (spec.kind == Collective::kBroadcast) is_only_read = spec.root == rank;
  if (spec.kind == Collective::kReduce) is_only_read = spec.root != rank;
  used.Add(range(0, spec.count, !is_only_read));
  return used;
}

namespace {

// The first of what is open that the range conflicts with: an operation, or a gradient.
struct Conflict {
  const OpenRange* open = nullptr;
  std::optional<std::uint32_t> gradient;

  bool any() const { return open != nullptr || gradient.has_value(); }
};

Conflict FindConflict(const Job& job, std::uint32_t rank, const Session& session,
                      const OpenRange& range) {
  const OpenRange* const open = job.ranks()[rank].open.FindConflict(range);
  if (open != nullptr) return {.open = open, .gradient = std::nullopt};
  return {.gradient = FindGradient(job, rank, session, range)};
}

}  // namespace

std::optional<Failure> FindOverlap(Job& job, std::uint32_t rank, const OperationSpec& spec) {
  const Session& session = *job.rank_entry(rank).session;
  const UsedRanges used = RangesOf(job, spec, rank);
  for (const OpenRange& range : used.all()) {
    const Conflict conflict = FindConflict(job, rank, session, range);
    if (!conflict.any()) continue;
    const OpenRange other =
        conflict.open != nullptr ? *conflict.open : RangeOfGradient(session, *conflict.gradient);
    std::string post =
        fmt::format("{} posted {}", job.DescribeRank(rank), DescribePost(spec, session));
    if (!ipc::IsSendOrReceive(spec.kind)) post += fmt::format(" as operation {}", spec.sequence);
    return Overlap(post,
                   conflict.open != nullptr
                       ? job.DescribeOperation(job.slot(conflict.open->sequence))
                       : job.DescribeGradient(*conflict.gradient),
                   DescribeShared(range, other, session));
  }
  return {};
}

std::optional<Failure> FindOverlap(Job& job, std::uint32_t rank, std::uint32_t tensor) {
  const JobRank& entry = job.rank_entry(rank);
  if (entry.open.empty()) return {};
  const OpenRange range = RangeOfGradient(*entry.session, tensor);
  const OpenRange* const open = entry.open.FindConflict(range);
  if (open == nullptr) return {};
  return Overlap(fmt::format("{} posted {}", job.DescribeRank(rank), job.DescribeGradient(tensor)),
                 job.DescribeOperation(job.slot(open->sequence)),
                 DescribeShared(range, *open, *entry.session));
}

}  // namespace headrace::service
