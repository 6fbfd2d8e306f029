// How a transfer becomes NCCL's calls, a piece at a time. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transport/nccl/nccl_group.h"
#include "transport/runs.h"
#include "transport/transport.h"

namespace headrace::transport {

// Who of a transfer's members sits where in a group of ranks. Inside a node every GPU among the
// members has a local rank, in the members' order, and its rank is its place; between nodes a
// member is a rank, and this node has one local rank.
struct NcclRankMap {
  std::uint32_t local_ranks_count = 0;
  std::uint32_t ranks_count = 0;
  std::array<std::uint32_t, kMembersMax> members{};  // by local rank
  std::array<std::uint32_t, kMembersMax> ranks{};    // by local rank
  std::uint32_t root_rank = 0;                       // kNoRank: the root is memory of the host
};
inline constexpr std::uint32_t kNoRank = UINT32_MAX;

NcclRankMap RankMapInNode(const Transfer& transfer);
NcclRankMap RankMapBetweenNodes(const Transfer& transfer, std::uint32_t self);

// Stretches of memory in one piece, at most.
inline constexpr std::uint64_t kPieceStretchesMax = 64;
// Calls of one piece, at most: an all_reduce of many stretches, or shares that cut them.
inline constexpr std::size_t kCallsMax = (kPieceStretchesMax + kMembersMax) * kMembersMax;

// Where the piece that begins at element `begin` ends: it has `size` bytes of a member's memory and
// kPieceStretchesMax stretches at the most. reduce_scatter and all_gather are one piece.
std::uint64_t PieceEnd(const Transfer& transfer, RunWalk walk, std::uint64_t begin,
                       std::size_t size);

// The calls of elements [begin, end), in the same order on every local rank. `walk` is anywhere
// before the end of the stretch that holds `begin`.
void AddCalls(const Transfer& transfer, const NcclRankMap& rank_map, const RunWalk& walk,
              std::uint64_t begin, std::uint64_t end, std::vector<NcclCall>& calls);

}  // namespace headrace::transport
