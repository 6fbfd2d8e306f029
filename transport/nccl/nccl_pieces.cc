#include "transport/nccl/nccl_pieces.h"

#include <algorithm>

#include "ipc/base/check.h"

namespace headrace::transport {
namespace {

// Shares of host memory begin at lines of it, seen from the piece.
constexpr std::uint64_t kShareGrain = 64;  // elements

bool OutputIsRootsMemory(const Transfer& transfer) {
  return transfer.output == transfer.members[transfer.root];
}

// What one piece's calls are made of.
class CallMaker {
 public:
  CallMaker(const Transfer& transfer, const NcclSeating& seating, std::vector<NcclCall>& calls)
      : transfer_(transfer), seating_(seating), calls_(calls) {}

  // Every seat reads and writes its own memory.
  void InPlace(std::uint64_t offset, std::uint64_t count) {
    for (std::uint32_t seat = 0; seat < seating_.seats_count; ++seat) {
      std::byte* const at = Memory(seat) + offset;
      Add(seat, at, at, count, seating_.root_rank);
    }
  }

  // A reduce of this node's one seat, whose output may be elsewhere.
  void ToOutput(std::uint64_t element, std::uint64_t offset, std::uint64_t count) {
    const bool elsewhere = transfer_.output != nullptr && !OutputIsRootsMemory(transfer_);
    std::byte* const source = Memory(0) + offset;
    std::byte* const target = elsewhere ? Host(transfer_.output, element) : source;
    Add(0, source, target, count, seating_.root_rank);
  }

  // A reduce whose result rank `share` writes to the host.
  void ToHost(std::uint32_t share, std::uint64_t element, std::uint64_t offset,
              std::uint64_t count) {
    for (std::uint32_t seat = 0; seat < seating_.seats_count; ++seat) {
      std::byte* const source = Memory(seat) + offset;
      Add(seat, source, seat == share ? Host(transfer_.output, element) : source, count, share);
    }
  }

  // A broadcast of what rank `share` reads from the host.
  void FromHost(std::uint32_t share, std::uint64_t element, std::uint64_t offset,
                std::uint64_t count) {
    for (std::uint32_t seat = 0; seat < seating_.seats_count; ++seat) {
      std::byte* const target = Memory(seat) + offset;
      const std::byte* const source =
          seat == share ? Host(transfer_.members[transfer_.root], element) : target;
      Add(seat, source, target, count, share);
    }
  }

  // Parts of reduce_scatter and all_gather: rank i's is the i-th.
  void Parts() {
    const std::uint64_t count = transfer_.count / seating_.ranks_count;
    for (std::uint32_t seat = 0; seat < seating_.seats_count; ++seat) {
      std::byte* const all = Memory(seat);
      std::byte* const own = all + seating_.ranks[seat] * count * SizeOf(transfer_.dtype);
      const bool scatters = transfer_.kind == Collective::kReduceScatter;
      Add(seat, scatters ? all : own, scatters ? own : all, count, 0);
    }
  }

 private:
  std::byte* Memory(std::uint32_t seat) const { return transfer_.members[seating_.members[seat]]; }
  std::byte* Host(std::byte* memory, std::uint64_t element) const {
    return memory + element * SizeOf(transfer_.dtype);
  }
  void Add(std::uint32_t seat, const std::byte* source, std::byte* target, std::uint64_t count,
           std::uint32_t root) {
    HR_CHECK(calls_.size() < kCallsMax, calls_.size());
    calls_.push_back({.kind = transfer_.kind,
                      .seat = seat,
                      .source = source,
                      .target = target,
                      .count = count,
                      .root = root});
  }

  const Transfer& transfer_;
  const NcclSeating& seating_;
  std::vector<NcclCall>& calls_;
};

// Calls `visit(share, element, offset, count)`: every rank has a share of the piece, so that all
// GPUs' links to the host are used.
template <typename Visit>
void ForEachShare(const NcclSeating& seating, const RunWalk& walk, std::uint64_t begin,
                  std::uint64_t end, Visit visit) {
  const std::uint64_t even = (end - begin + seating.seats_count - 1) / seating.seats_count;
  const std::uint64_t width = (even + kShareGrain - 1) / kShareGrain * kShareGrain;
  for (std::uint32_t share = 0; share < seating.seats_count && begin < end; ++share) {
    const std::uint64_t border = std::min(end, begin + width);
    ForEachStretch(walk, begin, border,
                   [&](std::uint64_t element, std::uint64_t offset, std::uint64_t count) {
                     visit(share, element, offset, count);
                   });
    begin = border;
  }
}

}  // namespace

NcclSeating SeatingInNode(const Transfer& transfer) {
  NcclSeating seating{.root_rank = kNoRank};
  for (std::uint32_t member = 0; member < transfer.members_count; ++member) {
    if (transfer.devices[member] == kHost) continue;
    if (member == transfer.root) seating.root_rank = seating.seats_count;
    seating.ranks[seating.seats_count] = seating.seats_count;
    seating.members[seating.seats_count++] = member;
  }
  seating.ranks_count = seating.seats_count;
  return seating;
}

NcclSeating SeatingBetweenNodes(const Transfer& transfer, std::uint32_t self) {
  NcclSeating seating{
      .seats_count = 1, .ranks_count = transfer.members_count, .root_rank = transfer.root};
  seating.members[0] = self;
  seating.ranks[0] = self;
  return seating;
}

std::uint64_t PieceEnd(const Transfer& transfer, RunWalk walk, std::uint64_t begin,
                       std::size_t size) {
  if (transfer.kind == Collective::kReduceScatter || transfer.kind == Collective::kAllGather) {
    return transfer.count;
  }
  const std::uint64_t end =
      std::min(transfer.count, begin + std::max<std::uint64_t>(1, size / SizeOf(transfer.dtype)));
  walk.GoTo(begin);
  std::uint64_t reached = begin;
  for (std::uint64_t i = 0; i < kStretchesMax && !walk.over() && reached < end; ++i, walk.Next()) {
    reached = std::min(end, walk.stretch().end);
  }
  return reached;
}

void AddCalls(const Transfer& transfer, const NcclSeating& seating, const RunWalk& walk,
              std::uint64_t begin, std::uint64_t end, std::vector<NcclCall>& calls) {
  CallMaker maker(transfer, seating, calls);
  const bool in_node = seating.seats_count == seating.ranks_count;
  const bool to_host =
      transfer.kind == Collective::kReduce && in_node && !OutputIsRootsMemory(transfer);
  const bool from_host = transfer.kind == Collective::kBroadcast && seating.root_rank == kNoRank;
  if (transfer.kind == Collective::kReduceScatter || transfer.kind == Collective::kAllGather) {
    maker.Parts();
  } else if (to_host || from_host) {
    ForEachShare(
        seating, walk, begin, end,
        [&](std::uint32_t share, std::uint64_t element, std::uint64_t offset, std::uint64_t count) {
          if (to_host) maker.ToHost(share, element, offset, count);
          if (from_host) maker.FromHost(share, element, offset, count);
        });
  } else {
    ForEachStretch(walk, begin, end,
                   [&](std::uint64_t element, std::uint64_t offset, std::uint64_t count) {
                     if (transfer.kind == Collective::kReduce && !in_node) {
                       maker.ToOutput(element, offset, count);
                     } else {
                       maker.InPlace(offset, count);
                     }
                   });
  }
}

}  // namespace headrace::transport
