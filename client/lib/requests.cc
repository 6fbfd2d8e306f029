#include "client/lib/requests.h"

#include <fmt/format.h>

#include <cstring>
#include <string>
#include <utility>

#include "ipc/base/collective_text.h"

namespace headrace::client {
namespace {

ArrayUse UseOf(const Request& request, void* array, std::size_t size, const Asker& asker) {
  if (size == 0) return {};  // `array` may be null
  const auto memory = static_cast<std::byte*>(array);
  const ArrayPiece whole{memory, 0, size};
  const std::size_t part = size / asker.world_size;
  const ArrayPiece mine{memory + part * asker.rank, part * asker.rank, part};
  ArrayUse use{size, {whole}, {whole}};
  if (ipc::IsSendOrReceive(request.kind)) {
    (request.kind == ipc::kSend ? use.written : use.read).clear();
    return use;
  }
  switch (request.kind) {
    case Collective::kBroadcast:
      (asker.rank == request.root ? use.written : use.read).clear();
      break;
    case Collective::kReduceScatter:
      use.written = {mine};
      break;
    case Collective::kAllGather:
      use.read = {mine};
      break;
    case Collective::kReduce:
      if (asker.rank != request.root) use.written.clear();
      break;
    case Collective::kAllReduce:
    case Collective::kBarrier:
      break;
  }
  return use;
}

Result<DType> CheckArray(const Request& request, std::uint64_t count, std::uint8_t dtype,
                         const Asker& asker) {
  if (!IsDType(dtype)) {
    return Error(Code::kInvalidArgument, UnknownDTypeText(dtype));
  }
  const auto type = static_cast<DType>(dtype);
  if (count > ipc::kSegmentSizeMax / SizeOf(type)) {
    return Error(Code::kInvalidArgument, fmt::format("no array has {} elements", count));
  }
  if (Status status = CheckRequest(request, count, asker); !status) return status.error();
  return type;
}

// In bytes; `count` elements is what the array has.
Result<std::vector<ArrayPiece>> PiecesOf(std::span<const hr_piece> pieces, DType type,
                                         std::uint64_t count) {
  std::vector<ArrayPiece> checked;
  checked.reserve(pieces.size());
  for (const hr_piece& piece : pieces) {
    if (piece.memory == nullptr) return Error(Code::kInvalidArgument, "a piece's memory is NULL");
    if (piece.count == 0 || piece.offset > count || piece.count > count - piece.offset) {
      return Error(Code::kInvalidArgument,
                   fmt::format("a piece of {} elements from element {} on: the array has {}, and a "
                               "piece at least one of them",
                               piece.count, piece.offset, count));
    }
    checked.push_back({static_cast<std::byte*>(piece.memory), piece.offset * SizeOf(type),
                       piece.count * SizeOf(type)});
  }
  return checked;
}

std::string DescribePlace(const hr_tensor& tensor) {
  return tensor.device < 0 ? "in host memory" : fmt::format("on GPU {}", tensor.device);
}

}  // namespace

Status CheckRequest(const Request& request, std::uint64_t count, const Asker& asker) {
  const auto kind = request.kind;
  if (Reduces(kind) && !IsReduction(static_cast<std::uint8_t>(request.reduction))) {
    return Error(Code::kInvalidArgument, UnknownReductionText(static_cast<int>(request.reduction)));
  }
  if (HasRoot(kind) && request.root >= asker.world_size) {
    const bool from = kind == Collective::kBroadcast || kind == kScatter;
    return Error(Code::kInvalidArgument,
                 fmt::format("{} {} rank {}: the job has {} ranks", Name(kind),
                             from ? "from" : "to", request.root, asker.world_size));
  }
  const bool from_any = kind == ipc::kReceive && request.root == ipc::kAnyRank;
  if (ipc::IsSendOrReceive(kind) && !from_any &&
      (request.root >= asker.world_size || request.root == asker.rank)) {
    return Error(Code::kInvalidArgument,
                 fmt::format("{} {} rank {}: {}", Name(kind), kind == ipc::kSend ? "to" : "from",
                             request.root,
                             request.root == asker.rank
                                 ? "that is this rank itself: copy the memory"
                                 : fmt::format("the job has {} ranks", asker.world_size)));
  }
  const bool in_parts = kind == Collective::kReduceScatter || kind == Collective::kAllGather;
  if (in_parts && count % asker.world_size != 0) {
    return Error(Code::kInvalidArgument,
                 fmt::format("{} of {} elements: the count must be a multiple of the {} ranks",
                             Name(kind), count, asker.world_size));
  }
  return {};
}

ipc::Record RecordOf(const Request& request, DType dtype, std::uint64_t count) {
  ipc::Record record;
  record.kind = static_cast<std::uint8_t>(request.kind);
  record.dtype = static_cast<std::uint8_t>(dtype);
  record.reduction = static_cast<std::uint8_t>(request.reduction);
  record.root = request.root;
  record.tag = request.tag;
  record.count = count;
  return record;
}

Result<ipc::Record> TensorRecordOf(const Request& request, const hr_tensor* tensor,
                                   const hr_range* range, const Asker& asker) {
  if (tensor == nullptr) return Error(Code::kInvalidArgument, "the tensor is NULL");
  const hr_range whole{0, tensor->count};
  const hr_range& part = range == nullptr ? whole : *range;
  if (part.offset > tensor->count || part.count > tensor->count - part.offset) {
    return Error(Code::kInvalidArgument,
                 fmt::format("{} elements from element {} do not lie within the tensor's {}",
                             part.count, part.offset, tensor->count));
  }
  if (Status status = CheckRequest(request, part.count, asker); !status) return status.error();
  ipc::Record record = RecordOf(request, tensor->dtype, part.count);
  record.tensor = tensor->id;
  record.offset = part.offset * SizeOf(tensor->dtype);
  return record;
}

Result<ArrayRequest> ArrayRequestOf(const Request& request, void* array, std::uint64_t count,
                                    std::uint8_t dtype, const Asker& asker) {
  if (array == nullptr && count != 0) {
    return Error(Code::kInvalidArgument,
                 fmt::format("the array is NULL, and its count is {}", count));
  }
  const Result<DType> type = CheckArray(request, count, dtype, asker);
  if (!type) return type.error();
  return ArrayRequest{RecordOf(request, *type, count),
                      UseOf(request, array, count * SizeOf(*type), asker)};
}

Result<ArrayRequest> PiecesRequestOf(const Request& request, std::uint64_t count,
                                     std::uint8_t dtype, std::span<const hr_piece> read,
                                     std::span<const hr_piece> written, const Asker& asker) {
  const Result<DType> type = CheckArray(request, count, dtype, asker);
  if (!type) return type.error();
  Result<std::vector<ArrayPiece>> from = PiecesOf(read, *type, count);
  if (!from) return from.error();
  Result<std::vector<ArrayPiece>> to = PiecesOf(written, *type, count);
  if (!to) return to.error();
  ArrayUse use{count * SizeOf(*type), std::move(from).value(), std::move(to).value()};
  return ArrayRequest{RecordOf(request, *type, count), std::move(use)};
}

Result<ArrayRequest> MessagesRequestOf(const Request& request, std::uint8_t dtype,
                                       const Moves<hr_array>& arrays, const Asker& asker) {
  // An operation of nothing is one, too: others may have something for each other.
  const Result<DType> type = CheckArray(request, asker.world_size, dtype, asker);
  if (!type) return type.error();
  Result<StagedMessages> staged = StageMessages(arrays, asker.rank, *type);
  if (!staged) return staged.error();
  const std::uint64_t count = staged->count;
  return ArrayRequest{RecordOf(request, *type, count), std::move(staged->use)};
}

Result<TableRequest> MessagesRequestOf(const Request& request, const hr_tensor* input,
                                       const hr_tensor* output, const Moves<hr_range>& ranges,
                                       const Asker& asker) {
  const hr_tensor* const any = input != nullptr ? input : output;
  if (any == nullptr) return Error(Code::kInvalidArgument, "input and output are NULL");
  for (const hr_tensor* tensor : {input, output}) {
    if (tensor == nullptr) continue;
    if (tensor->device >= 0) {
      return Error(Code::kInvalidArgument,
                   fmt::format("{} of tensors on a GPU is not carried out: send and receive them",
                               Name(request.kind)));
    }
    if (tensor->segment != any->segment || tensor->dtype != any->dtype) {
      return Error(Code::kInvalidArgument,
                   fmt::format("input and output of {} are of one segment and one element type",
                               Name(request.kind)));
    }
  }
  if (Status status = CheckRequest(request, asker.world_size, asker); !status)
    return status.error();
  const std::size_t size = SizeOf(any->dtype);
  RegisteredMemory memory;
  if (input != nullptr) memory = {.input = input->spec.offset / size, .input_count = input->count};
  if (output != nullptr) {
    memory.output = output->spec.offset / size;
    memory.output_count = output->count;
  }
  Result<std::vector<ipc::PartRow>> rows = TableOf(ranges, asker.rank, memory);
  if (!rows) return rows.error();
  if (ranges.sent[asker.rank].count != 0) {
    std::memmove(output->address + ranges.received[asker.rank].offset * size,
                 input->address + ranges.sent[asker.rank].offset * size,
                 ranges.sent[asker.rank].count * size);
  }
  ipc::Record record = RecordOf(request, any->dtype, any->segment->size / size);
  record.tensor = ipc::kNoTensor;
  record.segment = any->segment->id;
  return TableRequest{record, std::move(rows).value()};
}

Result<ArrayRequest> PartsRequestOf(const Request& request, std::uint8_t dtype, const hr_array& own,
                                    std::span<const hr_array> parts, const Asker& asker) {
  const Result<DType> type = CheckArray(request, asker.world_size, dtype, asker);
  if (!type) return type.error();
  Result<StagedMessages> staged =
      StageParts(request.kind == Collective::kAllGather, own, parts, asker.rank, *type);
  if (!staged) return staged.error();
  const std::uint64_t count = staged->count;
  return ArrayRequest{RecordOf(request, *type, count), std::move(staged->use)};
}

Result<TableRequest> PartsRequestOf(const Request& request, const hr_tensor* tensor,
                                    const hr_range* range, std::span<const std::uint64_t> counts,
                                    const Asker& asker) {
  const hr_range whole{0, tensor == nullptr ? 0 : tensor->count};
  // Any size will do: RecordFor checks that of equal parts.
  const Request unparted{Collective::kAllReduce, request.reduction};
  Result<ipc::Record> record =
      TensorRecordOf(unparted, tensor, range == nullptr ? &whole : range, asker);
  if (!record) return record.error();
  if (tensor->device >= 0 && request.kind == Collective::kAllGather) {
    return Error(
        Code::kInvalidArgument,
        fmt::format("{} in parts of any size is not carried out on a GPU", Name(request.kind)));
  }
  Result<std::vector<ipc::PartRow>> rows = PartRowsOf(counts, record->count);
  if (!rows) return rows.error();
  record->kind = static_cast<std::uint8_t>(request.kind);
  return TableRequest{*record, std::move(rows).value()};
}

Result<TableRequest> PartsRequestOf(const Request& request, const hr_tensor* whole,
                                    const hr_range* whole_range, const hr_tensor* own,
                                    const hr_range* own_range,
                                    std::span<const std::uint64_t> counts, const Asker& asker) {
  const Request unparted{Collective::kAllReduce, request.reduction};
  const Result<ipc::Record> part = TensorRecordOf(unparted, own, own_range, asker);
  if (!part) return part.error();
  const std::vector<std::uint64_t> equal(asker.world_size, part->count);
  if (counts.empty()) counts = equal;
  Result<TableRequest> made = PartsRequestOf(request, whole, whole_range, counts, asker);
  if (!made) return made.error();
  if (own->device != whole->device || own->dtype != whole->dtype) {
    return Error(Code::kInvalidArgument,
                 fmt::format("input and output of {} are of one element type, and both in host "
                             "memory or on one GPU: they are {} {} and {} {}",
                             Name(request.kind), Name(whole->dtype), DescribePlace(*whole),
                             Name(own->dtype), DescribePlace(*own)));
  }
  ipc::PartRow& row = made->parts[asker.rank];
  if (row.sent_count != part->count) {
    return Error(Code::kInvalidArgument,
                 fmt::format("the part of rank {} has {} elements, and its range {}", asker.rank,
                             row.sent_count, part->count));
  }
  const std::size_t size = SizeOf(own->dtype);
  if (request.kind == Collective::kAllGather) {
    // The two may be the same memory.
    if (part->count != 0) {
      std::memmove(whole->address + made->record.offset + row.sent_offset * size,
                   own->address + part->offset, part->count * size);
    }
    return made;
  }
  made->record.flags |= ipc::kRecordHasResult;
  made->record.root = own->segment->id;
  made->record.segment = own->id;  // which the service does not read; see OldestOpenOn
  row.received_offset = (own->spec.offset + part->offset) / size;
  row.received_count = part->count;
  return made;
}

}  // namespace headrace::client
