#include "client/lib/messages.h"

#include <fmt/format.h>

#include <cstring>

namespace headrace::client {
namespace {

Status CheckOwnPart(std::uint32_t rank, std::uint64_t sent, std::uint64_t received) {
  if (sent == received) return {};
  return Error(
      Code::kInvalidArgument,
      fmt::format("rank {} has {} elements for itself, and room for {}", rank, sent, received));
}

Status CheckArrays(const std::vector<hr_array>& arrays, const char* what) {
  for (std::size_t rank = 0; rank < arrays.size(); ++rank) {
    if (arrays[rank].count == 0) continue;
    if (arrays[rank].memory == nullptr) {
      return Error(Code::kInvalidArgument,
                   fmt::format("the array {} rank {} is NULL, and its count is {}", what, rank,
                               arrays[rank].count));
    }
    if (arrays[rank].count > ipc::kSegmentSizeMax) {
      return Error(Code::kInvalidArgument,
                   fmt::format("no array has {} elements", arrays[rank].count));
    }
  }
  return {};
}

Status CheckRanges(const std::vector<hr_range>& ranges, std::uint64_t count, const char* what) {
  for (std::size_t rank = 0; rank < ranges.size(); ++rank) {
    const hr_range& range = ranges[rank];
    if (range.offset <= count && range.count <= count - range.offset) continue;
    return Error(Code::kInvalidArgument,
                 fmt::format("{} elements from element {} on, {} rank {}, do not lie within the "
                             "tensor's {}",
                             range.count, range.offset, what, rank, count));
  }
  return {};
}

}  // namespace

Result<StagedMessages> StageMessages(const Moves<hr_array>& arrays, std::uint32_t rank,
                                     DType dtype) {
  if (Status status = CheckArrays(arrays.sent, "for"); !status) return status.error();
  if (Status status = CheckArrays(arrays.received, "from"); !status) return status.error();
  Status own = CheckOwnPart(rank, arrays.sent[rank].count, arrays.received[rank].count);
  if (!own) return own.error();
  const std::size_t size = SizeOf(dtype);
  StagedMessages staged;
  staged.use.parts.resize(arrays.sent.size());
  const auto piece = [size](const hr_array& array, std::uint64_t offset) {
    return ArrayPiece{static_cast<std::byte*>(array.memory), offset * size, array.count * size};
  };
  for (std::size_t other = 0; other < arrays.sent.size(); ++other) {
    const hr_array& array = arrays.sent[other];
    if (array.count == 0 || other == rank) continue;
    staged.use.read.push_back(piece(array, staged.count));
    staged.use.parts[other].sent_offset = staged.count;
    staged.use.parts[other].sent_count = array.count;
    staged.count += array.count;
  }
  for (std::size_t other = 0; other < arrays.received.size(); ++other) {
    const hr_array& array = arrays.received[other];
    if (array.count == 0 || other == rank) continue;
    staged.use.written.push_back(piece(array, staged.count));
    staged.use.parts[other].received_offset = staged.count;
    staged.use.parts[other].received_count = array.count;
    staged.count += array.count;
  }
  staged.use.size = staged.count * size;
  if (arrays.sent[rank].count != 0) {
    std::memmove(arrays.received[rank].memory, arrays.sent[rank].memory,
                 arrays.sent[rank].count * size);
  }
  return staged;
}

Result<StagedMessages> StageParts(bool gathers, const hr_array& own,
                                  std::span<const hr_array> parts, std::uint32_t rank,
                                  DType dtype) {
  Status same = CheckOwnPart(rank, gathers ? own.count : parts[rank].count,
                             gathers ? parts[rank].count : own.count);
  if (!same) return same.error();
  if (Status status = CheckArrays({own}, "of"); !status) return status.error();
  if (Status status = CheckArrays({parts.begin(), parts.end()}, "for"); !gathers && !status) {
    return status.error();
  }
  const std::size_t size = SizeOf(dtype);
  StagedMessages staged;
  staged.use.parts.resize(parts.size());
  for (std::size_t part = 0; part < parts.size(); ++part) {
    if (parts[part].count > ipc::kSegmentSizeMax) {
      return Error(Code::kInvalidArgument,
                   fmt::format("no array has {} elements", parts[part].count));
    }
    const auto piece = [&](const hr_array& array) {
      return ArrayPiece{static_cast<std::byte*>(array.memory), staged.count * size,
                        array.count * size};
    };
    staged.use.parts[part] = {.sent_offset = staged.count, .sent_count = parts[part].count};
    if (parts[part].count != 0 && parts[part].memory != nullptr) {
      (gathers ? staged.use.written : staged.use.read).push_back(piece(parts[part]));
    }
    if (part == rank && own.count != 0) {
      (gathers ? staged.use.read : staged.use.written).push_back(piece(own));
    }
    staged.count += parts[part].count;
  }
  staged.use.size = staged.count * size;
  return staged;
}

Result<std::vector<ipc::PartRow>> PartRowsOf(std::span<const std::uint64_t> counts,
                                             std::uint64_t count) {
  std::vector<ipc::PartRow> rows;
  std::uint64_t begin = 0;
  for (const std::uint64_t part : counts) {
    if (part > count - begin) break;
    rows.push_back({.sent_offset = begin, .sent_count = part});
    begin += part;
  }
  if (rows.size() == counts.size() && begin == count) return rows;
  return Error(Code::kInvalidArgument,
               fmt::format("the parts of {} ranks are not together the {} elements of the range",
                           counts.size(), count));
}

Result<std::vector<ipc::PartRow>> TableOf(const Moves<hr_range>& ranges, std::uint32_t rank,
                                          const RegisteredMemory& memory) {
  if (Status status = CheckRanges(ranges.sent, memory.input_count, "for"); !status) {
    return status.error();
  }
  if (Status status = CheckRanges(ranges.received, memory.output_count, "from"); !status) {
    return status.error();
  }
  Status own = CheckOwnPart(rank, ranges.sent[rank].count, ranges.received[rank].count);
  if (!own) return own.error();
  std::vector<ipc::PartRow> rows(ranges.sent.size());
  for (std::size_t other = 0; other < rows.size(); ++other) {
    if (other == rank) continue;
    if (ranges.sent[other].count != 0) {
      rows[other].sent_offset = memory.input + ranges.sent[other].offset;
      rows[other].sent_count = ranges.sent[other].count;
    }
    if (ranges.received[other].count != 0) {
      rows[other].received_offset = memory.output + ranges.received[other].offset;
      rows[other].received_count = ranges.received[other].count;
    }
  }
  return rows;
}

}  // namespace headrace::client
