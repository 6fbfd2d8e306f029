#include "service/dispatch/job/operation_spec.h"

#include <fmt/format.h>

#include <algorithm>

namespace headrace::service {

bool OperationSpec::Matches(const OperationSpec& other) const {
  if (ipc::IsSendOrReceive(kind)) {
    return dtype == other.dtype && count == other.count && OnGpu() == other.OnGpu();
  }
  // What moves in messages has memory of another size on each rank.
  return kind == other.kind && dtype == other.dtype &&
         (MovesInMessages(kind) || count == other.count) &&
         (!Reduces(kind) || reduction == other.reduction) &&
         (!HasRoot(kind) || root == other.root) && uneven == other.uneven && codec == other.codec &&
         follows == other.follows && OnGpu() == other.OnGpu();
}

void PartExtents::Extent::Add(std::uint64_t offset, std::uint64_t count) {
  if (count == 0) return;
  begin = empty() ? offset : std::min(begin, offset);
  end = std::max(end, offset + count);
}

PartExtents ExtentsOf(std::span<const ipc::PartRow> rows) {
  PartExtents extents;
  for (const ipc::PartRow& row : rows) {
    extents.sent.Add(row.sent_offset, row.sent_count);
    extents.received.Add(row.received_offset, row.received_count);
  }
  return extents;
}

bool IsParted(Collective kind) {
  return kind == Collective::kReduceScatter || kind == Collective::kAllGather;
}

bool IsShared(Collective kind) {
  return kind == Collective::kAllReduce || kind == Collective::kAllGather ||
         kind == Collective::kBroadcast;
}

std::string DescribeMemory(std::int8_t device) {
  return device == transport::kHost ? "in host memory" : fmt::format("on GPU {}", device);
}

std::string Describe(const OperationSpec& spec) {
  const std::string_view kind = Name(spec.kind);
  if (spec.kind == Collective::kBarrier) {
    return spec.follows == 0 ? std::string(kind)
                             : fmt::format("{} after iteration {}", kind, spec.follows);
  }
  const std::string what = fmt::format("{} of {} {}{}", kind, spec.count, Name(spec.dtype),
                                       spec.uneven ? " in parts of their own" : "");
  if (spec.kind == Collective::kReduce) {
    return fmt::format("{} ({}) to rank {}", what, Name(spec.reduction), spec.root);
  }
  if (Reduces(spec.kind)) {
    const std::string as = spec.codec == Codec::kNone ? "" : " as " + Name(spec.codec);
    return fmt::format("{} ({}){}", what, Name(spec.reduction), as);
  }
  if (spec.kind == kGather) return fmt::format("{} to rank {}", what, spec.root);
  if (HasRoot(spec.kind)) return fmt::format("{} from rank {}", what, spec.root);
  if (ipc::IsSendOrReceive(spec.kind)) {
    return fmt::format(
        "{} from {} to rank {}, tag {}", what,
        spec.source == ipc::kAnyRank ? "any rank" : fmt::format("rank {}", spec.source),
        spec.target, spec.tag);
  }
  return what;
}

}  // namespace headrace::service
