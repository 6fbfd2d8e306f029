#include "transport/shm/move.h"

#include <algorithm>
#include <array>
#include <span>

#include "ipc/base/copy.h"
#include "transport/reduce/reduce.h"
#include "transport/runs.h"

namespace headrace::transport {
namespace {

// A source is copied to all members in blocks that stay in the first-level cache in between, so
// that it is read from memory once.
constexpr std::size_t kCopyBlockSize = std::size_t{8} << 10;

// Copies `count` elements that lie `at` bytes behind the members' pointers.
void CopyToOthers(const Transfer& transfer, std::uint32_t source, std::size_t at,
                  std::uint64_t count) {
  const std::size_t whole = static_cast<std::size_t>(transfer.count) * SizeOf(transfer.dtype);
  const std::size_t limit = at + static_cast<std::size_t>(count) * SizeOf(transfer.dtype);
  for (; at < limit; at += kCopyBlockSize) {
    const std::size_t size = std::min(kCopyBlockSize, limit - at);
    for (std::uint32_t member = 0; member < transfer.members_count; ++member) {
      if (member == source) continue;
      CopyPartOf(whole, transfer.members[member] + at, transfer.members[source] + at, size);
    }
  }
}

void Reduce(const Transfer& transfer, std::span<std::byte* const> outputs, std::size_t at,
            std::uint64_t count) {
  ReduceInto(transfer.dtype, transfer.reduction, transfer.Members(), outputs, at,
             static_cast<std::size_t>(count), transfer.divisor);
}

// The reduction of a range of the member's part, to where the member wants it.
void ReducePart(const Transfer& transfer, std::uint32_t member, std::size_t at,
                std::uint64_t count) {
  const auto members = transfer.Members();
  std::byte* const output = transfer.outputs[member];
  if (output == nullptr) return Reduce(transfer, members.subspan(member, 1), at, count);
  // Inputs and output lie at different offsets, so all pointers are those of the range itself.
  std::array<std::byte*, kMembersMax> inputs{};
  for (std::uint32_t i = 0; i < transfer.members_count; ++i) inputs[i] = members[i] + at;
  const std::size_t part = transfer.Bytes() / transfer.members_count;
  std::byte* const target = output + (at - member * part);
  ReduceInto(transfer.dtype, transfer.reduction, std::span(inputs).first(transfer.members_count),
             {&target, 1}, 0, static_cast<std::size_t>(count), transfer.divisor);
}

// Calls `move(member, at, count)` for each member's part that [begin, end) touches.
template <typename Move>
void ForEachPart(const Transfer& transfer, std::uint64_t begin, std::uint64_t end, Move move) {
  const std::uint64_t part = transfer.count / transfer.members_count;
  while (begin < end) {
    const std::uint64_t member = begin / part;
    const std::uint64_t part_end = std::min(end, (member + 1) * part);
    move(static_cast<std::uint32_t>(member), begin * SizeOf(transfer.dtype), part_end - begin);
    begin = part_end;
  }
}

}  // namespace

void MoveRange(const Transfer& transfer, std::uint64_t begin, std::uint64_t end) {
  const auto members = transfer.Members();
  const RunWalk walk(transfer);
  switch (transfer.kind) {
    case Collective::kAllReduce:
      ForEachStretch(walk, begin, end, [&](auto, std::size_t at, std::uint64_t count) {
        Reduce(transfer, members, at, count);
      });
      return;
    case Collective::kReduceScatter:
      ForEachPart(transfer, begin, end, [&](std::uint32_t member, auto at, auto count) {
        ReducePart(transfer, member, at, count);
      });
      return;
    case Collective::kAllGather:
      ForEachPart(transfer, begin, end, [&](std::uint32_t member, auto at, auto count) {
        CopyToOthers(transfer, member, at, count);
      });
      return;
    case Collective::kBroadcast:
      ForEachStretch(walk, begin, end, [&](auto, std::size_t at, std::uint64_t count) {
        CopyToOthers(transfer, transfer.root, at, count);
      });
      return;
    case Collective::kReduce:
      ForEachStretch(walk, begin, end, [&](auto, std::size_t at, std::uint64_t count) {
        Reduce(transfer, {&transfer.output, 1}, at, count);
      });
      return;
    case Collective::kBarrier:
      return;
  }
}

}  // namespace headrace::transport
