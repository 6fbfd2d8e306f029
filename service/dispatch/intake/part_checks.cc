#include "service/dispatch/intake/part_checks.h"

#include <fmt/format.h>

#include <algorithm>

#include "ipc/base/check.h"
#include "ipc/shared_words.h"

namespace headrace::service {
namespace {

Error Refused(std::size_t row, const std::string& what) {
  return Error(Code::kInvalidArgument, fmt::format("row {} of the parts table {}", row, what));
}

Status CopyRows(const ipc::Record& record, const Session& session, std::span<ipc::PartRow> rows) {
  const SegmentId segment{record.parts};
  const std::span<const std::byte> memory = session.FindSegment(segment);
  if (memory.empty()) {
    return Error(Code::kNotFound,
                 fmt::format("record names segment {} for its parts table, which is not registered",
                             record.parts));
  }
  if (session.DeviceOf(segment) != transport::kHost) {
    return Error(Code::kInvalidArgument,
                 fmt::format("the parts table is in segment {}, on GPU {}: it belongs in memory of "
                             "the host",
                             record.parts, session.DeviceOf(segment)));
  }
  if (record.tag % alignof(ipc::PartRow) != 0) {
    return Error(Code::kInvalidArgument,
                 fmt::format("the parts table is at byte {}, which is not a multiple of {}",
                             record.tag, alignof(ipc::PartRow)));
  }
  if (record.tag > memory.size() || rows.size_bytes() > memory.size() - record.tag) {
    return Error(Code::kInvalidArgument,
                 fmt::format("the parts table of {} rows at byte {} reaches beyond the {} bytes of "
                             "segment {}",
                             rows.size(), record.tag, memory.size(), record.parts));
  }
  ipc::LoadWords(rows.data(), memory.data() + record.tag, rows.size_bytes());
  return {};
}

Status CheckRange(std::size_t row, const char* what, std::uint64_t offset, std::uint64_t count,
                  std::uint64_t room) {
  if (offset <= room && count <= room - offset) return {};
  return Refused(row, fmt::format("{} {} elements from element {} on, beyond its memory's {}", what,
                                  count, offset, room));
}

// Whether a rank has anything for another, or gets anything from it, in an operation of that kind.
bool Sends(const OperationSpec& spec, std::uint32_t source, std::uint32_t target) {
  if (source == target) return false;
  if (spec.kind == kGather) return target == spec.root;
  return spec.kind != kScatter || source == spec.root;
}

Status CheckUse(const OperationSpec& spec, std::uint32_t own, std::uint32_t row,
                const ipc::PartRow& part) {
  const bool sends = part.sent_offset != 0 || part.sent_count != 0;
  const bool receives = part.received_offset != 0 || part.received_count != 0;
  if (sends && !Sends(spec, own, row)) {
    return Refused(row, fmt::format("sends {} elements, and rank {} sends nothing to it in {}",
                                    part.sent_count, own, Name(spec.kind)));
  }
  if (receives && !Sends(spec, row, own)) {
    return Refused(row, fmt::format("receives {} elements, and rank {} gets nothing from it in {}",
                                    part.received_count, own, Name(spec.kind)));
  }
  return {};
}

// All of the record's memory is parts, one behind the other. Row `own` may receive as much as its
// part has, `own` being no rank where the record has no result elsewhere.
Status CheckUneven(const OperationSpec& spec, std::span<const ipc::PartRow> rows,
                   std::uint32_t own) {
  std::uint64_t end = 0;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const ipc::PartRow& part = rows[row];
    if (row == own && part.received_count != part.sent_count) {
      return Refused(row, fmt::format("receives {} elements of this rank's own part, which has {}",
                                      part.received_count, part.sent_count));
    }
    if (row != own && (part.received_offset != 0 || part.received_count != 0)) {
      return Refused(row, fmt::format("receives {} elements: {} has one part for each rank",
                                      part.received_count, Name(spec.kind)));
    }
    if (part.sent_offset != end || part.sent_count > spec.count - end) {
      return Refused(row, fmt::format("has {} elements from element {} on: parts follow each other "
                                      "and are together the record's {}",
                                      part.sent_count, part.sent_offset, spec.count));
    }
    end += part.sent_count;
  }
  if (end == spec.count) return {};
  return Refused(rows.size() - 1,
                 fmt::format("ends at element {}, and the record at {}", end, spec.count));
}

// Where the reduction of the rank's own part goes; null: to where the part is.
Result<std::byte*> FindResult(const ipc::Record& record, const Session& session,
                              const OperationSpec& spec, std::span<const ipc::PartRow> rows) {
  if (!ipc::HasResult(record)) return nullptr;
  const SegmentId segment{record.root};
  const std::span<std::byte> memory = session.FindSegment(segment);
  if (memory.empty()) {
    return Error(Code::kNotFound,
                 fmt::format("record names segment {} for its result, which is not registered",
                             record.root));
  }
  const std::int8_t device = session.DeviceOf(spec.segment);
  if (session.DeviceOf(segment) != device) {
    return Error(
        Code::kInvalidArgument,
        fmt::format("what is reduced is {}, and its result, in segment {}, {}: both are on "
                    "one GPU, or both in host memory",
                    DescribeMemory(device), record.root,
                    DescribeMemory(session.DeviceOf(segment))));
  }
  const std::uint32_t own = session.identity().rank;
  const std::uint64_t size = SizeOf(spec.dtype);
  const ipc::PartRow& part = rows[own];
  if (Status status = CheckRange(own, "receives", part.received_offset, part.received_count,
                                 memory.size() / size);
      !status) {
    return status.error();
  }
  std::byte* const result = memory.data() + part.received_offset * size;
  const bool apart =
      spec.data + spec.Bytes() <= result || result + part.received_count * size <= spec.data;
  if (apart || part.received_count == 0) return result;
  return Error(Code::kInvalidArgument,
               fmt::format("the result of {} elements lies in the memory that is reduced, of {}: "
                           "the two may not overlap",
                           part.received_count, spec.count));
}

}  // namespace

Status CheckParts(const ipc::Record& record, const Session& session, OperationSpec& spec,
                  std::span<ipc::PartRow> rows) {
  HR_CHECK(rows.size() == session.identity().world_size, rows.size());
  if (Status status = CopyRows(record, session, rows); !status) return status;
  const std::uint32_t own = session.identity().rank;
  if (spec.uneven) {
    if (Status status = CheckUneven(spec, rows, ipc::HasResult(record) ? own : UINT32_MAX); !status)
      return status;
    spec.uneven = std::ranges::any_of(
        rows, [&](const ipc::PartRow& part) { return part.sent_count != rows[0].sent_count; });
    Result<std::byte*> result = FindResult(record, session, spec, rows);
    if (result) spec.result = *result;
    return result ? Status() : Status(result.error());
  }
  std::uint64_t received_end = 0;
  for (std::uint32_t row = 0; row < rows.size(); ++row) {
    const ipc::PartRow& part = rows[row];
    if (Status status = CheckUse(spec, own, row, part); !status) return status;
    if (Status status = CheckRange(row, "sends", part.sent_offset, part.sent_count, spec.count);
        !status) {
      return status;
    }
    if (Status status =
            CheckRange(row, "receives", part.received_offset, part.received_count, spec.count);
        !status) {
      return status;
    }
    if (part.received_count == 0) continue;
    if (part.received_offset < received_end) {
      return Refused(row, fmt::format("receives from element {} on, and those before it up to "
                                      "element {}: parts follow each other in the ranks' order",
                                      part.received_offset, received_end));
    }
    received_end = part.received_offset + part.received_count;
  }
  const PartExtents extents = ExtentsOf(rows);
  if (extents.sent.Overlaps(extents.received)) {
    return Error(
        Code::kInvalidArgument,
        fmt::format("the parts table sends what is between elements {} and {} and receives "
                    "between {} and {}: the two may not overlap",
                    extents.sent.begin, extents.sent.end, extents.received.begin,
                    extents.received.end));
  }
  return {};
}

}  // namespace headrace::service
