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

OpenRange RangeOf(const OperationSpec& spec, std::uint32_t rank) {
  const std::uint64_t begin = AddressOf(spec.data);
  const bool is_only_read = ipc::IsSendOrReceive(spec.kind)
                                ? spec.target != rank
                                : spec.kind == Collective::kBroadcast && spec.root == rank;
  return {.begin = begin,
          .end = begin + spec.Bytes(),
          .sequence = spec.sequence,
          .written = !is_only_read};
}

std::optional<Failure> FindOverlap(Job& job, std::uint32_t rank, const OperationSpec& spec) {
  const Member& member = job.member(rank);
  const OpenRange range = RangeOf(spec, rank);
  if (range.begin == range.end) return {};
  const OpenRange* const open = member.open.FindConflict(range);
  const std::optional<std::uint32_t> gradient =
      open != nullptr ? std::nullopt : FindGradient(job, rank, *member.session, range);
  if (open == nullptr && !gradient) return {};
  const OpenRange other = open != nullptr ? *open : RangeOfGradient(*member.session, *gradient);
  std::string post =
      fmt::format("{} posted {}", job.DescribeRank(rank), DescribePost(spec, *member.session));
  if (!ipc::IsSendOrReceive(spec.kind)) post += fmt::format(" as operation {}", spec.sequence);
  return Overlap(post,
                 open != nullptr ? job.DescribeOperation(job.slot(open->sequence))
                                 : job.DescribeGradient(*gradient),
                 DescribeShared(range, other, *member.session));
}

std::optional<Failure> FindOverlap(Job& job, std::uint32_t rank, std::uint32_t tensor) {
  const Member& member = job.member(rank);
  if (member.open.empty()) return {};
  const OpenRange range = RangeOfGradient(*member.session, tensor);
  const OpenRange* const open = member.open.FindConflict(range);
  if (open == nullptr) return {};
  return Overlap(fmt::format("{} posted {}", job.DescribeRank(rank), job.DescribeGradient(tensor)),
                 job.DescribeOperation(job.slot(open->sequence)),
                 DescribeShared(range, *open, *member.session));
}

}  // namespace headrace::service
