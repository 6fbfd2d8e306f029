// One GPU's part of a piece: NCCL's calls on its rank, as one of NCCL's groups of calls, and an
// event after them in its stream. Made by one thread, whichever it is.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ipc/base/collective.h"
#include "ipc/base/result.h"
#include "transport/memory/cuda_handles.h"
#include "transport/nccl/nccl_library.h"

namespace headrace::transport {

// A rank of this process. NCCL wants one thread at a time to use it: while `launches` is not zero
// that is the GPU's launch thread, else whoever owns the group.
struct NcclRank {
  NcclComm comm = nullptr;
  std::uint32_t number = 0;
  std::uint32_t ranks_count = 0;
  // Handed to a launch thread and not done. Its release of the last one pairs with the acquire of
  // whoever asks NCCL something next, or ends the rank.
  std::atomic<std::uint32_t> launches = 0;
  std::atomic<bool> ends = false;  // it is being ended: nothing more may be called
};

// What one local rank does in a collective; the other local ranks, here or in other processes, do
// theirs.
struct NcclCall {
  Collective kind = Collective::kAllReduce;
  std::uint32_t local_rank = 0;
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  std::uint64_t count = 0;  // elements; of reduce_scatter and all_gather those of one part
  std::uint32_t root = 0;   // rank
};

struct NcclLaunch {
  const NcclLibrary* library = nullptr;
  std::shared_ptr<NcclRank> rank;  // owners: the group, its launches, and what ends the rank
  const PrimaryContext* context = nullptr;
  CuStream stream = nullptr;
  CuEvent mark = nullptr;  // recorded behind the calls
  DType dtype = DType::kUInt8;
  Reduction reduction = Reduction::kSum;
  std::uint32_t divisor = 0;  // of kAverage
  std::vector<NcclCall> calls;

  NcclReduction scaled = kNcclSum;  // made for these calls; else kNcclSum
  bool marked = false;              // the mark stands behind the calls in the stream
  Status status;                    // of what was done so far; the first error counts
};

// Hands the calls to NCCL, which goes on in the background.
void BeginLaunch(NcclLaunch& launch);
// Whether NCCL has nothing of it in the background any more: the calls stand in the stream, or
// failed, or the rank is being ended.
bool IsLaunched(NcclLaunch& launch);
// Marks the end of the calls in the stream, unless something failed.
void MarkLaunch(NcclLaunch& launch);

}  // namespace headrace::transport
