// The blocks of an operation that moves in messages: gather, scatter, all_to_all.
//
// Its messages are numbered alike on every node, in rotating order: first that of each rank to the
// next one, then that of each rank to the one after that. So never do all ranks send to one, and
// all nodes carry out their messages in one order. A node makes blocks of the messages that begin
// or end on it. A message between two of its ranks has one or several blocks. One to or from
// another node has exactly one, also if it has no elements, so that a disagreement of nodes is
// found.
//
// Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "service/dispatch/job/block.h"
#include "service/dispatch/job/job.h"
#include "service/dispatch/job/operation.h"

namespace headrace::service {

struct MessageBlock {
  std::uint32_t index = 0;  // the same on every node that has a part in it
  std::uint32_t source = 0;
  std::uint32_t target = 0;
  Range range;  // of the message
};

// The first block from `index` on; nothing when there is none. `block_bytes` is how many it may
// have where that is for this node to say, 0: any number.
std::optional<MessageBlock> NextMessageBlock(const Job& job, const OperationSpec& spec,
                                             std::uint64_t block_bytes, std::uint32_t index);
// How many there are on this node.
std::uint64_t MessageBlocksCount(const Job& job, const OperationSpec& spec,
                                 std::uint64_t block_bytes);
// The parts of an operation that has some of any size: the same for all ranks.
std::span<const ipc::PartRow> PartsOf(const Job& job, const OperationSpec& spec);
// Bytes that the largest of its messages has here.
std::uint64_t LargestMessage(const Job& job, const OperationSpec& spec);

// Why what the rank has just posted does not fit what the node's other ranks have posted.
std::optional<Failure> FindPartsMismatch(const Job& job, const Operation& operation,
                                         std::uint32_t rank);

}  // namespace headrace::service
