// Ranks of NCCL that belong together, those of this process: one for each of its GPUs in the set.
// They are formed, given calls and ended without ever blocking the thread that asks.
//
// One thread. What runs in the background, NCCL's own threads and the one that ends the ranks,
// holds what it needs itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/collective.h"
#include "ipc/base/result.h"
#include "transport/memory/cuda_handles.h"
#include "transport/nccl/nccl_library.h"

namespace headrace::transport {

// One rank: its GPU, and the stream that all of its calls go to. Both outlive the group.
struct NcclSeat {
  const PrimaryContext* context = nullptr;
  CuStream stream = nullptr;
  std::uint32_t rank = 0;
  std::uint32_t track = 0;  // which stream this is among the owner's
};

// What one seat does in a collective; the other seats, here or in other processes, do theirs.
struct NcclCall {
  Collective kind = Collective::kAllReduce;
  std::uint32_t seat = 0;
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  std::uint64_t count = 0;  // elements; of reduce_scatter and all_gather those of one part
  std::uint32_t root = 0;   // rank
};

// Calls that NCCL gets as one of its groups.
struct NcclBatch {
  DType dtype = DType::kUInt8;
  Reduction reduction = Reduction::kSum;
  std::uint32_t divisor = 0;  // of kAverage
  std::vector<NcclCall> calls;
};

class NcclGroup {
 public:
  // Begins to form the ranks; Poll tells when they are. `ranks_count` is that of all processes,
  // each of which calls this with the same id. `ctas_max` 0: NCCL's own choice.
  static Result<std::unique_ptr<NcclGroup>> Form(const NcclLibrary& library,
                                                 std::vector<NcclSeat> seats,
                                                 std::uint32_t ranks_count, const NcclId& id,
                                                 std::uint32_t ctas_max);
  // Aborts what was not ended, and waits for the end no longer than kEndWait.
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  static constexpr TimeNs kEndWait = kSecond;

  const std::vector<NcclSeat>& seats() const { return seats_; }
  std::uint32_t ranks_count() const { return ranks_count_; }

  // True when nothing is under way in the background: formed, or launched on every GPU. An error is
  // NCCL's, also one that came later while GPUs ran; then only Abort makes sense.
  Result<bool> Poll();

  // Hands the calls over; Poll tells when they stand in the streams. Only when Poll said true. The
  // batch may go at once. After an error some may stand there: only Abort makes sense.
  Status Launch(const NcclBatch& batch);

  // Gives everything back in the background. Finish lets other processes finish first, and aborts
  // after kEndWait; Abort makes GPUs drop what they do. Nothing else may be called afterwards.
  void Finish();
  void Abort();
  // Whether all calls that end the ranks have returned.
  bool ended() const;

 private:
  struct Ending;  // what the thread that ends ranks shares with this
  struct Rank {
    NcclComm comm = nullptr;
    NcclReduction scaled = kNcclSum;  // made for the launch that is under way; else kNcclSum
  };

  NcclGroup(const NcclLibrary& library, std::vector<NcclSeat> seats, std::uint32_t ranks_count);
  Status Begin(const NcclId& id, std::uint32_t ctas_max);
  Result<NcclReduction> ReductionOf(const NcclBatch& batch, Rank& rank);
  Status Call(const NcclBatch& batch, const NcclCall& call, NcclReduction reduction);
  void DropScaled();
  void End(bool finish);

  const NcclLibrary& library_;
  std::vector<NcclSeat> seats_;
  std::uint32_t ranks_count_;
  std::vector<Rank> ranks_;         // by seat; empty once they are being ended
  std::shared_ptr<Ending> ending_;  // owners: this, and the thread that ends the ranks
};

}  // namespace headrace::transport
