// The lane between the GPUs of one node over NCCL: one rank for each GPU among a transfer's
// members.
//
// All ranks are driven by the lane's one thread: each piece is one of NCCL's groups of calls over
// all GPUs, and the next is begun when NCCL has launched it on every one of them. So the order is
// the same on all GPUs by construction, which a thread for each GPU would have to agree on for
// every piece. Nothing here waits: NCCL is told not to block, and how it gets on is asked
// by DoWork, which returns true while anything is under way; nobody wakes the lane.
//
// What NCCL cannot do is refused (Takes), and ends the transfer with kInvalidArgument: two members
// on one GPU, members on the host other than a broadcast's root, and averages of integers whose
// divisor is not the number of GPUs.
// Results are the same bits on every member. The order of the sum is NCCL's own: it is neither that
// of members nor the host lane's, float16 and bfloat16 are rounded as NCCL rounds them, and min and
// max of NaN are NCCL's. Averages by another divisor than the number of GPUs are sums of inputs
// that were multiplied by its inverse.
//
// Cancel: pieces that are not given out are not; those that are get `cancel_patience_ns` to end,
// then NCCL's ranks are aborted. A group that is aborted, or fails, ends all of its transfers that
// are under way, each with the cause, once no GPU works on them any more; the next transfer forms a
// new one. Where even the abort does not end in `abort_timeout_ns`, transfers end with kInternal
// and words that say so, and the lane takes no more: only then may a GPU still write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/base/result.h"
#include "transport/memory/gpus.h"
#include "transport/nccl/nccl_library.h"
#include "transport/transport.h"

namespace headrace::transport {

struct NcclOptions {
  std::string library = std::string(kNcclLibrary);
  // Bytes of one member's memory in one of NCCL's groups of calls; a multiple of 128.
  // reduce_scatter and all_gather move as one piece whatever their size.
  std::size_t piece_size = std::size_t{32} << 20;
  // Blocks of threads of one collective on one GPU, at most; 0: as many as NCCL likes.
  std::uint32_t ctas_max = 0;
  TimeNs form_timeout_ns = 60 * kSecond;  // to make a group of GPUs ready
  TimeNs cancel_patience_ns = 200 * kMillisecond;
  TimeNs abort_timeout_ns = 700 * kMillisecond;
};

class NcclTransport final : public Transport {
 public:
  static constexpr std::uint32_t kTransfersMax = 64;
  // Sets of GPUs that are kept ready; the one that was not used for longest makes room.
  static constexpr std::size_t kGroupsMax = 8;

  // `gpus` must outlive the transport. Groups are formed when the first transfer needs them.
  // Errors: NcclLibrary::Open's, and what a GPU says.
  static Result<std::unique_ptr<NcclTransport>> Open(const Gpus& gpus, const NcclOptions& options);
  // Aborts what is open, in bounded time.
  ~NcclTransport() override;

  // Whether NCCL can carry it out; the error names the reason and the remedy.
  static Status Takes(const Transfer& transfer);

  const Capabilities& capabilities() const override;
  [[nodiscard]] PostResult Post(const Transfer& transfer, TimeNs now) override;
  void Cancel(std::uint64_t token) override;
  bool DoWork(TimeNs now, std::vector<Completion>& completions) override;
  bool PrepareToSleep() override;

  // For people: "NCCL 2.22.3".
  std::string LibraryText() const;

 private:
  struct Parts;
  explicit NcclTransport(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

}  // namespace headrace::transport
