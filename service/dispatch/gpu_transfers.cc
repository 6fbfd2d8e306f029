// Transfers of GPUs' memory on its way to other nodes and back, by way of scratch that all GPUs of
// the node reach, so that each of them carries its share of a block to and from there, and blocks
// pass their steps side by side. Scratch is pinned memory of the host, one piece for a block, or
// lies on the GPUs that have lanes to other nodes, a piece on each for its share of the block.
#include "service/dispatch/job.h"

namespace headrace::service {

void Job::AddMember(const Operation& operation, std::uint32_t rank, std::uint64_t begin,
                    transport::Transfer& transfer) {
  transfer.members[transfer.members_count] = MemoryOf(operation, rank, begin);
  transfer.devices[transfer.members_count] = DeviceOf(operation, rank);
  ++transfer.members_count;
}

// In the steps of the node a part has scratch of its own, or there is one part.
void Job::AddScratch(const Block& block, const Part& part, transport::Transfer& transfer) {
  transfer.members[transfer.members_count] = block.scratch_on_gpus[block.PartOf(part)];
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
    return AddScratch(block, part, transfer);
  }
  transfer.kind = Collective::kReduce;
  // The division comes last, once the sum of all ranks is there.
  if (transfer.reduction == Reduction::kAverage) transfer.reduction = Reduction::kSum;
  for (const std::uint32_t rank : local_) AddMember(operation, rank, part.range.begin, transfer);
  transfer.output = block.scratch_on_gpus[block.PartOf(part)];
}

// What other nodes have made of it, from scratch or from the rank that had it all along.
void Job::FillToGpus(const Operation& operation, const Block& block, const Part& part,
                     transport::Transfer& transfer) {
  transfer.kind = Collective::kBroadcast;
  transfer.root = 0;
  const bool rooted = operation.shape.kind != Collective::kAllReduce && IsHere(block.root);
  const bool has_it = rooted && !Reduces(operation.shape.kind);
  if (!has_it) AddScratch(block, part, transfer);
  if (rooted) AddMember(operation, block.root, part.range.begin, transfer);
  if (operation.shape.kind == Collective::kReduceScatter) return;
  for (const std::uint32_t rank : local_) {
    if (rooted && rank == block.root) continue;
    AddMember(operation, rank, part.range.begin, transfer);
  }
}

}  // namespace headrace::service
