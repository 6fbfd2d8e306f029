// What ranks of one process share with each other: those of one id, which end together, and those
// of one context, whose launches may have an order.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "transport/memory/cuda_handles.h"

namespace headrace::nccl_double {

class Rank;

// The ranks of one id that are on one host and in one process. Ending one of them frees nothing:
// the call that ends the last one waits for the streams of all of them, and frees all (NCCL 2.28.9,
// src/init.cc, commReclaim: it counts in finalizeRankCnt of intraComm0).
//
// Thread-safe. Owners: its ranks.
class Family {
 public:
  static std::shared_ptr<Family> Of(const std::string& hub, std::uint64_t host);

  // A rank belongs to it once it is formed.
  void Join(std::shared_ptr<Rank> rank);
  // The rank has left. All that belong to it, if this was the last of them; else none.
  std::vector<std::shared_ptr<Rank>> Leave();

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<Rank>> ranks_;
  std::size_t left_count_ = 0;
};

// With NCCL_LAUNCH_ORDER_IMPLICIT all launches into one context stand in one order, whichever ranks
// and streams they belong to: none begins before the one that was launched before it has begun, or,
// with drivers before CUDA 12.3, has ended (NCCL 2.28.9, src/enqueue.cc, getImplicitOrder,
// ncclLaunchPrepare, ncclLaunchFinish).
//
// Owners: the ranks of the context.
struct LaunchOrder {
  enum class Kind : std::uint8_t { kBegins, kEnds };

  // Null where launches have no order, or the GPU refuses an event.
  static std::shared_ptr<LaunchOrder> Of(transport::CuContext context);

  std::mutex mutex;  // held from the wait for the last launch until the next one stands
  Kind kind = Kind::kBegins;
  transport::CudaEvent last;
};

}  // namespace headrace::nccl_double
