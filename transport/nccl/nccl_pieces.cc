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
  CallMaker(const Transfer& transfer, const NcclRankMap& rank_map, std::vector<NcclCall>& calls)
      : transfer_(transfer), rank_map_(rank_map), calls_(calls) {}

  // Every local rank reads and writes its own memory.
  void InPlace(std::uint64_t offset, std::uint64_t count) {
    for (std::uint32_t local_rank = 0; local_rank < rank_map_.local_ranks_count; ++local_rank) {
      std::byte* const at = Memory(local_rank) + offset;
      Add(local_rank, at, at, count, rank_map_.root_rank);
    }
  }

  // A reduce to its root, whose output may be elsewhere.
  void ToOutput(std::uint64_t element, std::uint64_t offset, std::uint64_t count) {
    const bool elsewhere = transfer_.output != nullptr && !OutputIsRootsMemory(transfer_);
    for (std::uint32_t local_rank = 0; local_rank < rank_map_.local_ranks_count; ++local_rank) {
      std::byte* const source = Memory(local_rank) + offset;
      const bool writes = elsewhere && rank_map_.ranks[local_rank] == rank_map_.root_rank;
      Add(local_rank, source, writes ? Packed(transfer_.output, element) : source, count,
          rank_map_.root_rank);
    }
  }

  // A reduce whose result rank `share` writes to the host.
  void ToHost(std::uint32_t share, std::uint64_t element, std::uint64_t offset,
              std::uint64_t count) {
    for (std::uint32_t local_rank = 0; local_rank < rank_map_.local_ranks_count; ++local_rank) {
      std::byte* const source = Memory(local_rank) + offset;
      Add(local_rank, source, local_rank == share ? Packed(transfer_.output, element) : source,
          count, share);
    }
  }

  // A broadcast of what rank `share` reads from the host.
  void FromHost(std::uint32_t share, std::uint64_t element, std::uint64_t offset,
                std::uint64_t count) {
    for (std::uint32_t local_rank = 0; local_rank < rank_map_.local_ranks_count; ++local_rank) {
      std::byte* const target = Memory(local_rank) + offset;
      const std::byte* const source =
          local_rank == share ? Packed(transfer_.members[transfer_.root], element) : target;
      Add(local_rank, source, target, count, share);
    }
  }

  // Parts of reduce_scatter and all_gather: rank i's is the i-th.
  void Parts() {
    const std::uint64_t count = transfer_.count / rank_map_.ranks_count;
    for (std::uint32_t local_rank = 0; local_rank < rank_map_.local_ranks_count; ++local_rank) {
      std::byte* const all = Memory(local_rank);
      std::byte* const own = all + rank_map_.ranks[local_rank] * count * SizeOf(transfer_.dtype);
      const bool scatters = transfer_.kind == Collective::kReduceScatter;
      std::byte* const output = transfer_.outputs[rank_map_.members[local_rank]];
      std::byte* const reduced = output != nullptr ? output : own;
      Add(local_rank, scatters ? all : own, scatters ? reduced : all, count, 0);
    }
  }

 private:
  std::byte* Memory(std::uint32_t local_rank) const {
    return transfer_.members[rank_map_.members[local_rank]];
  }
  std::byte* Packed(std::byte* memory, std::uint64_t element) const {
    return memory + element * SizeOf(transfer_.dtype);
  }
  void Add(std::uint32_t local_rank, const std::byte* source, std::byte* target,
           std::uint64_t count, std::uint32_t root) {
    HR_CHECK(calls_.size() < kCallsMax, calls_.size());
    calls_.push_back({.kind = transfer_.kind,
                      .local_rank = local_rank,
                      .source = source,
                      .target = target,
                      .count = count,
                      .root = root});
  }

  const Transfer& transfer_;
  const NcclRankMap& rank_map_;
  std::vector<NcclCall>& calls_;
};

// Calls `visit(share, element, offset, count)`: every rank has a share of the piece, so that all
// GPUs' links to the host are used.
template <typename Visit>
void ForEachShare(const NcclRankMap& rank_map, const RunWalk& walk, std::uint64_t begin,
                  std::uint64_t end, Visit visit) {
  const std::uint64_t even =
      (end - begin + rank_map.local_ranks_count - 1) / rank_map.local_ranks_count;
  const std::uint64_t width = (even + kShareGrain - 1) / kShareGrain * kShareGrain;
  for (std::uint32_t share = 0; share < rank_map.local_ranks_count && begin < end; ++share) {
    const std::uint64_t border = std::min(end, begin + width);
    ForEachStretch(walk, begin, border,
                   [&](std::uint64_t element, std::uint64_t offset, std::uint64_t count) {
                     visit(share, element, offset, count);
                   });
    begin = border;
  }
}

}  // namespace

NcclRankMap RankMapInNode(const Transfer& transfer) {
  NcclRankMap rank_map{.root_rank = kNoRank};
  for (std::uint32_t member = 0; member < transfer.members_count; ++member) {
    if (transfer.devices[member] == kHost) continue;
    if (member == transfer.root) rank_map.root_rank = rank_map.local_ranks_count;
    rank_map.ranks[rank_map.local_ranks_count] = rank_map.local_ranks_count;
    rank_map.members[rank_map.local_ranks_count++] = member;
  }
  rank_map.ranks_count = rank_map.local_ranks_count;
  return rank_map;
}

NcclRankMap RankMapBetweenNodes(const Transfer& transfer, std::uint32_t self) {
  NcclRankMap rank_map{
      .local_ranks_count = 1, .ranks_count = transfer.members_count, .root_rank = transfer.root};
  rank_map.members[0] = self;
  rank_map.ranks[0] = self;
  return rank_map;
}

std::uint64_t PieceEnd(const Transfer& transfer, RunWalk walk, std::uint64_t begin,
                       std::size_t size) {
  if (transfer.kind == Collective::kReduceScatter || transfer.kind == Collective::kAllGather) {
    return transfer.count;
  }
  const std::uint64_t end =
      std::min(transfer.count, begin + std::max<std::uint64_t>(1, size / SizeOf(transfer.dtype)));
  walk.Seek(begin);
  std::uint64_t reached = begin;
  for (std::uint64_t i = 0; i < kPieceStretchesMax && !walk.over() && reached < end;
       ++i, walk.Next()) {
    reached = std::min(end, walk.stretch().end);
  }
  return reached;
}

void AddCalls(const Transfer& transfer, const NcclRankMap& rank_map, const RunWalk& walk,
              std::uint64_t begin, std::uint64_t end, std::vector<NcclCall>& calls) {
  CallMaker maker(transfer, rank_map, calls);
  const bool in_node = rank_map.local_ranks_count == rank_map.ranks_count;
  const bool reduces = transfer.kind == Collective::kReduce;
  const bool to_host =
      reduces && in_node && !transfer.output_on_root_gpu && !OutputIsRootsMemory(transfer);
  const bool from_host = transfer.kind == Collective::kBroadcast && rank_map.root_rank == kNoRank;
  if (transfer.kind == Collective::kReduceScatter || transfer.kind == Collective::kAllGather) {
    maker.Parts();
  } else if (to_host || from_host) {
    ForEachShare(
        rank_map, walk, begin, end,
        [&](std::uint32_t share, std::uint64_t element, std::uint64_t offset, std::uint64_t count) {
          if (to_host) maker.ToHost(share, element, offset, count);
          if (from_host) maker.FromHost(share, element, offset, count);
        });
  } else {
    ForEachStretch(walk, begin, end,
                   [&](std::uint64_t element, std::uint64_t offset, std::uint64_t count) {
                     if (reduces) {
                       maker.ToOutput(element, offset, count);
                     } else {
                       maker.InPlace(offset, count);
                     }
                   });
  }
}

}  // namespace headrace::transport
