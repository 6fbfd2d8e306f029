// Posts of arrays of the caller's own, and of operations that move messages between ranks.
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "client/lib/session.h"

namespace headrace::client {

ArrayUse Session::UseOf(const Request& request, void* array, std::size_t size) const {
  const auto memory = static_cast<std::byte*>(array);
  const ArrayPiece whole{memory, 0, size};
  const std::size_t part = size / world_size();
  const ArrayPiece mine{memory + part * rank(), part * rank(), part};
  ArrayUse use{size, {whole}, {whole}};
  if (ipc::IsSendOrReceive(request.kind)) {
    (request.kind == ipc::kSend ? use.written : use.read).clear();
    return use;
  }
  switch (request.kind) {
    case Collective::kBroadcast:
      (rank() == request.root ? use.written : use.read).clear();
      break;
    case Collective::kReduceScatter:
      use.written = {mine};
      break;
    case Collective::kAllGather:
      use.read = {mine};
      break;
    case Collective::kReduce:
      if (rank() != request.root) use.written.clear();
      break;
    case Collective::kAllReduce:
    case Collective::kBarrier:
      break;
  }
  return use;
}

Result<DType> Session::CheckArray(const Request& request, std::uint64_t count,
                                  std::uint8_t dtype) const {
  if (!IsDType(dtype)) {
    return Error(Code::kInvalidArgument, fmt::format("dtype {} is not one", int{dtype}));
  }
  const auto type = static_cast<DType>(dtype);
  if (count > ipc::kSegmentSizeMax / SizeOf(type)) {
    return Error(Code::kInvalidArgument, fmt::format("no array has {} elements", count));
  }
  if (Status status = CheckRequest(request, count); !status) return status.error();
  return type;
}

Result<std::uint64_t> Session::PostArray(const Request& request, void* array, std::uint64_t count,
                                         std::uint8_t dtype) {
  if (array == nullptr) return Error(Code::kInvalidArgument, "the array is NULL");
  const Result<DType> type = CheckArray(request, count, dtype);
  if (!type) return type.error();
  return arrays_->Post(RecordOf(request, *type, count),
                       UseOf(request, array, count * SizeOf(*type)));
}

namespace {

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

}  // namespace

Result<std::uint64_t> Session::PostPieces(const Request& request, std::uint64_t count,
                                          std::uint8_t dtype, std::span<const hr_piece> read,
                                          std::span<const hr_piece> written) {
  const Result<DType> type = CheckArray(request, count, dtype);
  if (!type) return type.error();
  Result<std::vector<ArrayPiece>> from = PiecesOf(read, *type, count);
  if (!from) return from.error();
  Result<std::vector<ArrayPiece>> to = PiecesOf(written, *type, count);
  if (!to) return to.error();
  ArrayUse use{count * SizeOf(*type), std::move(from).value(), std::move(to).value()};
  return arrays_->Post(RecordOf(request, *type, count), std::move(use));
}

Result<std::uint64_t> Session::PostMessages(const Request& request, std::uint8_t dtype,
                                            const Moves<hr_array>& arrays) {
  // An operation of nothing is one, too: others may have something for each other.
  const Result<DType> type = CheckArray(request, world_size(), dtype);
  if (!type) return type.error();
  Result<StagedMessages> staged = StageMessages(arrays, rank(), *type);
  if (!staged) return staged.error();
  const std::uint64_t count = staged->count;
  return arrays_->Post(RecordOf(request, *type, count), std::move(staged->use));
}

Result<std::uint64_t> Session::PostMessages(const Request& request, const hr_tensor* input,
                                            const hr_tensor* output,
                                            const Moves<hr_range>& ranges) {
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
  if (Status status = CheckRequest(request, world_size()); !status) return status.error();
  const std::size_t size = SizeOf(any->dtype);
  RegisteredMemory memory;
  if (input != nullptr) memory = {.input = input->spec.offset / size, .input_count = input->count};
  if (output != nullptr) {
    memory.output = output->spec.offset / size;
    memory.output_count = output->count;
  }
  Result<std::vector<ipc::PartRow>> rows = TableOf(ranges, rank(), memory);
  if (!rows) return rows.error();
  if (ranges.sent[rank()].count != 0) {
    std::memmove(output->address + ranges.received[rank()].offset * size,
                 input->address + ranges.sent[rank()].offset * size,
                 ranges.sent[rank()].count * size);
  }
  ipc::Record record = RecordOf(request, any->dtype, any->segment->size / size);
  record.tensor = ipc::kNoTensor;
  record.segment = any->segment->id;
  return arrays_->PostTable(record, std::move(rows).value());
}

Result<std::uint64_t> Session::PostParts(const Request& request, std::uint8_t dtype,
                                         const hr_array& own, std::span<const hr_array> parts) {
  const Result<DType> type = CheckArray(request, world_size(), dtype);
  if (!type) return type.error();
  Result<StagedMessages> staged =
      StageParts(request.kind == Collective::kAllGather, own, parts, rank(), *type);
  if (!staged) return staged.error();
  const std::uint64_t count = staged->count;
  return arrays_->Post(RecordOf(request, *type, count), std::move(staged->use));
}

Result<std::uint64_t> Session::PostParts(const Request& request, const hr_tensor* tensor,
                                         const hr_range* range,
                                         std::span<const std::uint64_t> counts) {
  const hr_range whole{0, tensor == nullptr ? 0 : tensor->count};
  // Any size will do: RecordFor checks that of equal parts.
  const Request unparted{Collective::kAllReduce, request.reduction};
  Result<ipc::Record> record = RecordFor(unparted, tensor, range == nullptr ? &whole : range);
  if (!record) return record.error();
  if (tensor->device >= 0) {
    return Error(
        Code::kInvalidArgument,
        fmt::format("{} in parts of any size is not carried out on a GPU", Name(request.kind)));
  }
  Result<std::vector<ipc::PartRow>> rows = PartRowsOf(counts, record->count);
  if (!rows) return rows.error();
  record->kind = static_cast<std::uint8_t>(request.kind);
  return arrays_->PostTable(*record, std::move(rows).value());
}

}  // namespace headrace::client
