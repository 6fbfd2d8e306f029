// Where the bytes of a block lie, and the transfer that carries one part of its stage.
//
// A block of GPUs' memory goes to other nodes through scratch memory that all GPUs of the node
// reach, so that each GPU moves its share to and from there, and the stages of different blocks run
// side by side. Scratch is pinned host memory, one piece for a block, or memory of the GPUs that
// have lanes to other nodes, a piece on each for its share of the block.
#pragma once

#include <array>
#include <cstdint>

#include "service/dispatch/job/job.h"
#include "transport/transport.h"

namespace headrace::service {

transport::Transfer MakeTransfer(Job& job, const Operation& operation, const Block& block,
                                 const BlockPart& part);
// The shares of the block on the lanes between nodes; returns how many lanes there are.
std::uint32_t SharesOf(const Job& job, const Operation& operation, const Block& block,
                       std::array<Range, kRailsMax>& shares);

// Whether a block needs scratch memory for this node's sum, which belongs to none of its ranks.
bool NeedsScratch(const Job& job, const Operation& operation, const Block& block);
// Gives the block such memory; false when all of it is in use, or still being made.
bool AllocateScratch(Job& job, const Operation& operation, Block& block);
// Takes it back, if there is any, before the block is freed.
void ReturnScratch(Job& job, Block& block);

}  // namespace headrace::service
