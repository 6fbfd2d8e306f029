// The NCCL communicators of one node, by the GPUs that they are for: formed when they are first
// needed, kept for the next transfer of those GPUs, ended when others need the room or when they
// fail.
//
// The lane's thread.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "transport/memory/gpus.h"
#include "transport/nccl/nccl_queue.h"

namespace headrace::transport {

struct NcclCommunicatorCacheOptions {
  std::size_t groups_max = 8;
  std::uint32_t ctas_max = 0;
  TimeNs form_timeout_ns = 60 * kSecond;
};

class NcclCommunicatorCache final : public NcclGroups {
 public:
  // All outlive this, as do the streams, which are one for each GPU of `gpus`.
  NcclCommunicatorCache(const NcclLibrary& library, const Gpus& gpus,
                        const std::vector<CudaStream>& streams,
                        const NcclCommunicatorCacheOptions& options)
      : library_(library), gpus_(gpus), streams_(streams), options_(options) {}

  Result<NcclGroup*> GroupFor(const Transfer& transfer, TimeNs now) override;
  NcclRankMap RankMapOf(const Transfer& transfer) const override { return RankMapInNode(transfer); }
  void Lost(NcclGroup& group, const Error& error) override;

  // At the end: nothing is under way, and ranks may end as NCCL likes it best.
  void FinishAll();

  // Lets groups go that have ended and that the queue does not use. Whether some are still ending.
  bool Sweep(const NcclQueue& queue);

 private:
  struct Known {
    std::vector<std::int8_t> devices;  // by rank
    std::unique_ptr<NcclGroup> group;
    bool ready = false;
    TimeNs begun_ns = 0;
    std::uint64_t used = 0;  // the last use's number
  };

  Result<NcclGroup*> Poll(std::list<Known>::iterator known, TimeNs now);
  std::unique_ptr<NcclGroup> Form(const std::vector<std::int8_t>& devices);
  void Retire(std::list<Known>::iterator known);

  const NcclLibrary& library_;
  const Gpus& gpus_;
  const std::vector<CudaStream>& streams_;
  NcclCommunicatorCacheOptions options_;
  std::vector<std::int8_t> wanted_;  // scratch
  std::list<Known> known_;
  std::uint64_t uses_ = 0;
  std::vector<std::unique_ptr<NcclGroup>> leaving_;  // being ended
};

}  // namespace headrace::transport
