// Transfers of GPUs' memory on its way to other nodes and back, by way of host memory that is
// pinned for all GPUs of the node: each GPU carries its share of a block, so that all of their
// links to the host work at once, and blocks pass their steps side by side.
#include "ipc/base/check.h"
#include "service/dispatch/cut.h"
#include "service/dispatch/job.h"

namespace headrace::service {

void Job::AddMember(const Operation& operation, std::uint32_t rank, std::uint64_t begin,
                    transport::Transfer& transfer) {
  transfer.members[transfer.members_count] = MemoryOf(operation, rank, begin);
  transfer.devices[transfer.members_count] = DeviceOf(operation, rank);
  ++transfer.members_count;
}

// The block's scratch as one more member, from element `begin` of the operation on.
void Job::AddScratch(const Operation& operation, const Block& block, std::uint64_t begin,
                     transport::Transfer& transfer) const {
  HR_CHECK(block.scratch_on_gpus != nullptr, block.sequence);
  transfer.members[transfer.members_count] =
      block.scratch_on_gpus + (begin - block.range.begin) * SizeOf(operation.shape.dtype);
  transfer.devices[transfer.members_count] = transport::kHost;
  ++transfer.members_count;
}

// The node's sum, or the data of the rank that has it, into scratch.
void Job::FillFromGpus(const Operation& operation, const Block& block, const Part& part,
                       transport::Transfer& transfer) {
  transfer.root = 0;
  if (!Reduces(operation.shape.kind)) {
    transfer.kind = Collective::kBroadcast;
    AddMember(operation, block.root, part.range.begin, transfer);
    return AddScratch(operation, block, part.range.begin, transfer);
  }
  transfer.kind = Collective::kReduce;
  // The division comes last, once the sum of all ranks is there.
  if (transfer.reduction == Reduction::kAverage) transfer.reduction = Reduction::kSum;
  for (const std::uint32_t rank : local_) AddMember(operation, rank, part.range.begin, transfer);
  const std::uint64_t before = part.range.begin - block.range.begin;
  transfer.output = block.scratch_on_gpus + before * SizeOf(operation.shape.dtype);
}

// What other nodes have made of it, from scratch or from the rank that had it all along.
void Job::FillToGpus(const Operation& operation, const Block& block, const Part& part,
                     transport::Transfer& transfer) {
  transfer.kind = Collective::kBroadcast;
  transfer.root = 0;
  const bool rooted = operation.shape.kind != Collective::kAllReduce && IsHere(block.root);
  const bool has_it = rooted && !Reduces(operation.shape.kind);
  if (!has_it) AddScratch(operation, block, part.range.begin, transfer);
  if (rooted) AddMember(operation, block.root, part.range.begin, transfer);
  if (operation.shape.kind == Collective::kReduceScatter) return;
  for (const std::uint32_t rank : local_) {
    if (rooted && rank == block.root) continue;
    AddMember(operation, rank, part.range.begin, transfer);
  }
}

}  // namespace headrace::service
