#include "service/dispatch/job/operation_spec.h"

#include <fmt/format.h>

namespace headrace::service {

bool OperationSpec::Matches(const OperationSpec& other) const {
  if (ipc::IsSendOrReceive(kind)) {
    return dtype == other.dtype && count == other.count && OnGpu() == other.OnGpu();
  }
  return kind == other.kind && dtype == other.dtype && count == other.count &&
         (!Reduces(kind) || reduction == other.reduction) &&
         (kind != Collective::kBroadcast || root == other.root) && OnGpu() == other.OnGpu();
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
  if (spec.kind == Collective::kBarrier) return std::string(kind);
  const std::string what = fmt::format("{} of {} {}", kind, spec.count, Name(spec.dtype));
  if (Reduces(spec.kind)) return fmt::format("{} ({})", what, Name(spec.reduction));
  if (spec.kind == Collective::kBroadcast) return fmt::format("{} from rank {}", what, spec.root);
  if (ipc::IsSendOrReceive(spec.kind)) {
    return fmt::format(
        "{} from {} to rank {}, tag {}", what,
        spec.source == ipc::kAnyRank ? "any rank" : fmt::format("rank {}", spec.source),
        spec.target, spec.tag);
  }
  return what;
}

}  // namespace headrace::service
