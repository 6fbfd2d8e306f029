#include "service/dispatch/intake/record_checks.h"

#include <fmt/format.h>

#include <limits>
#include <optional>
#include <span>

#include "ipc/base/check.h"
#include "ipc/base/codecs.h"
#include "ipc/base/collective_text.h"
#include "service/session/send_notices.h"

namespace headrace::service {
namespace {

Error Invalid(const char* field, std::uint64_t value, const std::string& expected) {
  return Error(Code::kInvalidArgument,
               fmt::format("record field {} is {}: {}", field, value, expected));
}

bool Follows(const ipc::Record& record) {
  return (record.flags & ipc::kRecordFollowsGradients) != 0;
}

// The codec that an all_reduce names for its way between nodes.
Status CheckCodec(const ipc::Record& record) {
  const std::optional<Codec> codec = CodecOfValue(record.tag);
  if (!codec) return Invalid("tag", record.tag, "no codec has this number");
  if (NeedsResidual(*codec)) {
    return Invalid("tag", record.tag,
                   fmt::format("{} needs what it left out before, and operations have no residual: "
                               "give a layout of gradients, or another codec",
                               Name(*codec)));
  }
  const auto reduction = static_cast<Reduction>(record.reduction);
  const bool sums = reduction == Reduction::kSum || reduction == Reduction::kAverage;
  if (sums && static_cast<DType>(record.dtype) == DType::kFloat32) return {};
  return Invalid(
      "tag", record.tag,
      fmt::format("only sums and averages of float32 are compressed, and this is {} of {}",
                  Name(reduction), Name(static_cast<DType>(record.dtype))));
}

Status CheckNumbers(const ipc::Record& record, std::uint32_t world_size) {
  const bool paired = ipc::IsSendOrReceive(record.kind);
  if (!paired && !IsCollective(record.kind)) {
    return Invalid("kind", record.kind, UnknownKindText(record.kind));
  }
  if (!IsDType(record.dtype)) return Invalid("dtype", record.dtype, UnknownDTypeText(record.dtype));
  if (paired && record.count > kSendBytesMax / SizeOf(static_cast<DType>(record.dtype))) {
    return Invalid("count", record.count,
                   fmt::format("a message has at most {} bytes", kSendBytesMax));
  }
  if (!IsReduction(record.reduction)) {
    return Invalid("reduction", record.reduction, UnknownReductionText(record.reduction));
  }
  const bool has_parts = (record.flags & ipc::kRecordHasParts) != 0;
  if ((record.flags & ~(ipc::kRecordAwaitsWord | ipc::kRecordHasParts |
                        ipc::kRecordFollowsGradients | ipc::kRecordHasResult)) != 0) {
    return Invalid(
        "flags", record.flags,
        fmt::format("an operation has only the flags {}, {}, {} and {}", ipc::kRecordAwaitsWord,
                    ipc::kRecordHasParts, ipc::kRecordFollowsGradients, ipc::kRecordHasResult));
  }
  const auto kind = static_cast<Collective>(record.kind);
  if (Follows(record) && kind != Collective::kBarrier) {
    return Invalid("flags", record.flags,
                   fmt::format("only a barrier follows gradients, and this is {}", Name(kind)));
  }
  if (has_parts != MovesInMessages(kind) && !(has_parts && IsParted(kind))) {
    return Invalid(
        "flags", record.flags,
        fmt::format("{} {} parts table", Name(kind), has_parts ? "takes no" : "needs a"));
  }
  if (ipc::HasResult(record) && (kind != Collective::kReduceScatter || !has_parts)) {
    return Invalid("flags", record.flags,
                   fmt::format("only a reduce_scatter with a parts table has its result elsewhere, "
                               "and this is {}{}",
                               Name(kind), has_parts ? "" : " without a table"));
  }
  if (!has_parts && record.parts != 0) {
    return Invalid("parts", record.parts, "without a parts table it is 0");
  }
  if (kind == Collective::kAllReduce && record.tag != 0) {
    if (Status status = CheckCodec(record); !status) return status;
  } else if (!paired && !has_parts && record.tag != 0) {
    return Invalid("tag", record.tag,
                   "only a send or receive, a parts table, or an all_reduce in a codec has one");
  }
  if (!paired && !ipc::HasResult(record) && record.root >= world_size) {
    return Invalid("root", record.root, fmt::format("the job has {} ranks", world_size));
  }
  if (record.timeout_ms > kTimeoutMsMax) {
    return Invalid("timeout_ms", record.timeout_ms, fmt::format("at most {}", kTimeoutMsMax));
  }
  return {};
}

// Where the named tensor or segment lies; also fills spec.segment and spec.tensor and checks the
// dtype.
Result<std::span<std::byte>> FindMemory(const ipc::Record& record, const Session& session,
                                        OperationSpec& spec) {
  if (record.tensor == ipc::kNoTensor) {
    spec.segment = SegmentId{record.segment};
    const std::span<std::byte> memory = session.FindSegment(spec.segment);
    if (memory.empty()) {
      return Error(Code::kNotFound,
                   fmt::format("record names segment {}, which is not registered", record.segment));
    }
    return memory;
  }
  spec.tensor = TensorId{record.tensor};
  const Tensor* tensor = session.FindTensor(spec.tensor);
  if (tensor == nullptr) {
    return Error(Code::kNotFound,
                 fmt::format("record names tensor {}, which is not registered", record.tensor));
  }
  if (tensor->dtype != spec.dtype) {
    return Error(Code::kInvalidArgument,
                 fmt::format("record says {}, but tensor {} \"{}\" was registered as {}",
                             Name(spec.dtype), record.tensor, tensor->name, Name(tensor->dtype)));
  }
  spec.segment = tensor->segment;
  const std::span<std::byte> memory = session.FindSegment(tensor->segment);
  // A client may release a segment and register tensors in it at the same time.
  if (tensor->offset > memory.size() || tensor->Bytes() > memory.size() - tensor->offset) {
    return Error(Code::kNotFound,
                 fmt::format("record names tensor {} \"{}\", whose segment {} is not there",
                             record.tensor, tensor->name, tensor->segment.value));
  }
  return memory.subspan(tensor->offset, tensor->Bytes());
}

Status CheckRange(const ipc::Record& record, const OperationSpec& spec, std::uint64_t memory_size) {
  const std::uint64_t element = SizeOf(spec.dtype);
  if (record.offset % element != 0) {
    return Invalid("offset", record.offset,
                   fmt::format("not a multiple of the element size {}", element));
  }
  if (record.offset > memory_size || record.count > (memory_size - record.offset) / element) {
    return Error(Code::kInvalidArgument,
                 fmt::format("record asks for {} elements of {} at byte {}, beyond the end of its "
                             "memory of {} bytes",
                             record.count, Name(spec.dtype), record.offset, memory_size));
  }
  return {};
}

// Only a GPU writes ready words, and only for a GPU's sake does the service keep looking for them.
bool Awaits(std::uint8_t flags) { return (flags & ipc::kRecordAwaitsWord) != 0; }

Error NobodyWrites(std::uint8_t flags, const std::string& memory) {
  return Invalid(
      "flags", flags,
      fmt::format("kRecordAwaitsWord waits for a GPU, and {}: post it once the memory is "
                  "ready, without that flag",
                  memory));
}

Status CheckContributors(const ipc::GradientRecord& record, std::uint32_t world_size) {
  if (record.contributors == 0) return {};
  if (record.reduction != static_cast<std::uint8_t>(Reduction::kAverage)) {
    return Invalid("contributors", record.contributors, "only averages are divided: 0");
  }
  if (record.contributors <= world_size) return {};
  return Invalid("contributors", record.contributors,
                 fmt::format("the job has {} rank{}", world_size, world_size == 1 ? "" : "s"));
}

}  // namespace

Result<OperationSpec> CheckRecord(const ipc::Record& record, const Session& session) {
  const std::uint32_t world_size = session.identity().world_size;
  if (Status status = CheckNumbers(record, world_size); !status) return status.error();
  const bool paired = ipc::IsSendOrReceive(record.kind);
  const Result<PairSides> sides =
      paired ? CheckSides(record, session.identity()) : Result<PairSides>(PairSides{});
  if (!sides) return sides.error();
  OperationSpec spec{
      .sequence = record.commit,
      .kind = static_cast<Collective>(record.kind),
      .dtype = static_cast<DType>(record.dtype),
      .reduction = static_cast<Reduction>(record.reduction),
      .root = paired || ipc::HasResult(record) ? 0 : record.root,
      .count = record.count,
      .segment = {},
      .timeout_ms = record.timeout_ms != 0 ? record.timeout_ms : session.identity().timeout_ms,
      .source = sides->source,
      .target = sides->target,
      .tag = sides->tag};
  if (spec.kind == Collective::kBarrier) {
    if (record.count != 0) return Invalid("count", record.count, "a barrier moves nothing");
    if (Follows(record) && session.gradients() == nullptr) {
      return Invalid("flags", record.flags,
                     "it follows gradients, and the session has handed in no layout");
    }
    if (Awaits(record.flags) && !session.HasDeviceMemory()) {
      return NobodyWrites(record.flags, "no segment of the session is of one");
    }
    return spec;
  }
  if (spec.kind == Collective::kAllReduce) spec.codec = CodecOfValue(record.tag).value_or(Codec());
  spec.has_parts = (record.flags & ipc::kRecordHasParts) != 0;
  spec.uneven = IsParted(spec.kind) && spec.has_parts;
  if (IsParted(spec.kind) && !spec.uneven && record.count % world_size != 0) {
    return Invalid("count", record.count,
                   fmt::format("{} divides it among {} ranks: pad it to a multiple",
                               Name(spec.kind), world_size));
  }
  const Result<std::span<std::byte>> memory = FindMemory(record, session, spec);
  if (!memory) return memory.error();
  if (Status status = CheckRange(record, spec, memory->size()); !status) return status.error();
  HR_CHECK(spec.Bytes() <= memory->size() - record.offset, record.offset, spec.Bytes());
  spec.data = memory->data() + record.offset;
  const std::int8_t device = session.DeviceOf(spec.segment);
  if (Awaits(record.flags) && device == transport::kHost) {
    return NobodyWrites(record.flags,
                        fmt::format("segment {} is memory of the host", spec.segment.value));
  }
  if (spec.count != 0) spec.device = device;
  return spec;
}

Result<PairSides> CheckSides(const ipc::Record& record, const SessionIdentity& identity) {
  const bool sends = static_cast<Collective>(record.kind) == ipc::kSend;
  if (!sends && record.root == ipc::kAnyRank && identity.world_size > 1) {
    return PairSides{ipc::kAnyRank, identity.rank, record.tag};
  }
  if (record.root >= identity.world_size) {
    return Invalid(
        "root", record.root,
        fmt::format("the rank to {}; the job has {} rank{}", sends ? "send to" : "receive from",
                    identity.world_size, identity.world_size == 1 ? "" : "s"));
  }
  if (record.root == identity.rank) {
    return Invalid("root", record.root, "no rank sends to itself: copy the memory");
  }
  return sends ? PairSides{identity.rank, record.root, record.tag}
               : PairSides{record.root, identity.rank, record.tag};
}

Result<std::uint32_t> CheckGradient(const ipc::GradientRecord& record, const Session& session) {
  const Session::Gradients* const gradients = session.gradients();
  if (gradients == nullptr) {
    return Error(Code::kInvalidArgument,
                 "record is of a gradient, and the session has handed in no layout");
  }
  const Layout& layout = *gradients->layout;
  if ((record.flags & ~ipc::kRecordAwaitsWord) != ipc::kRecordIsGradient) {
    return Invalid("flags", record.flags,
                   fmt::format("a gradient has only the flags {} and {}", ipc::kRecordIsGradient,
                               ipc::kRecordAwaitsWord));
  }
  if (record.kind != static_cast<std::uint8_t>(Collective::kAllReduce)) {
    return Invalid("kind", record.kind, "gradients are reduced");
  }
  if (record.tensor < gradients->first.value ||
      record.tensor - gradients->first.value >= layout.tensors.size()) {
    return Invalid("tensor", record.tensor, "not one of the layout");
  }
  const std::uint32_t tensor = record.tensor - gradients->first.value;
  if (record.dtype != static_cast<std::uint8_t>(layout.tensors[tensor].dtype)) {
    return Invalid("dtype", record.dtype,
                   fmt::format("gradient {} is of {}", tensor, Name(layout.tensors[tensor].dtype)));
  }
  if (record.reduction != static_cast<std::uint8_t>(layout.reduction)) {
    return Invalid("reduction", record.reduction, "not that of the layout");
  }
  if (record.count != layout.tensors[tensor].count) {
    return Invalid(
        "count", record.count,
        fmt::format("gradient {} has {} elements", tensor, layout.tensors[tensor].count));
  }
  if (record.timeout_ms > kTimeoutMsMax) {
    return Invalid("timeout_ms", record.timeout_ms, fmt::format("at most {}", kTimeoutMsMax));
  }
  if (Status status = CheckContributors(record, session.identity().world_size); !status) {
    return status.error();
  }
  for (const std::uint64_t time_ns : {record.forward_ns, record.waited_ns}) {
    if (time_ns <= ipc::kGradientTimeMax) continue;
    return Invalid(time_ns == record.forward_ns ? "forward_ns" : "waited_ns", time_ns,
                   fmt::format("at most {}", ipc::kGradientTimeMax));
  }
  if (Awaits(record.flags) && gradients->device == transport::kHost) {
    return NobodyWrites(record.flags, "the layout is memory of the host");
  }
  return tensor;
}

}  // namespace headrace::service
