// The lane inside one node: the members' memory is mapped here, and is summed in place.
//
// Transfers are worked on one at a time, in the order of their posts. A small one is done by the
// lane's thread within one DoWork; a large one is offered to the worker pool as well, and DoWork
// does one piece of it per call. Begin and end times are read from CLOCK_MONOTONIC, because a
// transfer may begin and end within one call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/shm/piecework.h"
#include "transport/shm/worker_pool.h"
#include "transport/transport.h"

namespace headrace::transport {

class ShmTransport final : public Transport {
 public:
  static constexpr std::uint32_t kTransfersMax = 64;

  // `threads` share a large transfer: the lane's own and threads - 1 that are started here and end
  // with the transport. The waker must outlive it. Transfers that are open on destruction end at a
  // piece border, without a completion.
  ShmTransport(std::uint32_t threads, Waker& waker);

  const Capabilities& capabilities() const override { return capabilities_; }
  [[nodiscard]] PostResult Post(const Transfer& transfer, TimeNs now) override;
  void Cancel(std::uint64_t token) override;
  bool DoWork(TimeNs now, std::vector<Completion>& completions) override;

 private:
  struct Slot {
    Transfer transfer;
    bool cancelled = false;
    TimeNs begin_ns = 0;
  };

  void ReportCancelled(TimeNs now, std::vector<Completion>& completions);
  void Begin(Slot& head);
  bool IsLarge(const Transfer& transfer) const;

  Capabilities capabilities_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;    // indices of slots_ without a transfer
  std::vector<std::uint32_t> queue_;   // indices of slots_ in order of their posts
  bool begun_ = false;                 // the head of the queue is being worked on
  bool shared_ = false;                // ... and offered to the worker pool
  std::uint32_t cancelled_count_ = 0;  // queued transfers that wait for their report
  Piecework work_;
  WorkerPool pool_;  // last: its threads work on the members above
};

}  // namespace headrace::transport
