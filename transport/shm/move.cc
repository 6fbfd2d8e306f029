#include "transport/shm/move.h"

#include <algorithm>
#include <cstring>

#include "transport/reduce/reduce.h"

namespace headrace::transport {
namespace {

// A source is copied to all members in blocks that stay in the first-level cache in between, so
// that it is read from memory once.
constexpr std::size_t kCopyBlockSize = std::size_t{8} << 10;

void CopyToOthers(const Transfer& transfer, std::uint32_t source, std::uint64_t begin,
                  std::uint64_t end) {
  const std::size_t element_size = SizeOf(transfer.dtype);
  const std::size_t limit = static_cast<std::size_t>(end) * element_size;
  for (std::size_t at = static_cast<std::size_t>(begin) * element_size; at < limit;
       at += kCopyBlockSize) {
    const std::size_t size = std::min(kCopyBlockSize, limit - at);
    for (std::uint32_t member = 0; member < transfer.members_count; ++member) {
      if (member == source) continue;
      std::memcpy(transfer.members[member] + at, transfer.members[source] + at, size);
    }
  }
}

void Reduce(const Transfer& transfer, std::span<std::byte* const> outputs, std::uint64_t begin,
            std::uint64_t end) {
  ReduceInto(transfer.dtype, transfer.reduction, transfer.Members(), outputs,
             static_cast<std::size_t>(begin) * SizeOf(transfer.dtype),
             static_cast<std::size_t>(end - begin), transfer.divisor);
}

// Calls `move(member, begin, end)` for each member's part that [begin, end) touches.
template <typename Move>
void ForEachPart(const Transfer& transfer, std::uint64_t begin, std::uint64_t end, Move move) {
  const std::uint64_t part = transfer.count / transfer.members_count;
  while (begin < end) {
    const std::uint64_t member = begin / part;
    const std::uint64_t part_end = std::min(end, (member + 1) * part);
    move(static_cast<std::uint32_t>(member), begin, part_end);
    begin = part_end;
  }
}

}  // namespace

void MoveRange(const Transfer& transfer, std::uint64_t begin, std::uint64_t end) {
  const auto members = transfer.Members();
  switch (transfer.kind) {
    case Collective::kAllReduce:
      Reduce(transfer, members, begin, end);
      return;
    case Collective::kReduceScatter:
      ForEachPart(transfer, begin, end, [&](std::uint32_t member, auto from, auto to) {
        Reduce(transfer, members.subspan(member, 1), from, to);
      });
      return;
    case Collective::kAllGather:
      ForEachPart(transfer, begin, end, [&](std::uint32_t member, auto from, auto to) {
        CopyToOthers(transfer, member, from, to);
      });
      return;
    case Collective::kBroadcast:
      CopyToOthers(transfer, transfer.root, begin, end);
      return;
    case Collective::kReduce:
      Reduce(transfer, {&transfer.output, 1}, begin, end);
      return;
    case Collective::kBarrier:
      return;
  }
}

}  // namespace headrace::transport
