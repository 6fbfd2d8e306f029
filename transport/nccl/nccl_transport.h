// The lane between the GPUs of one node over NCCL: one rank for each GPU among a transfer's
// members.
//
// Each GPU has a launch thread, which makes NCCL's calls on its ranks (nccl_launcher.h). The lane's
// thread posts every piece to the threads of all its GPUs before the next one, so the order is the
// same on all GPUs. It waits for none of them and takes no lock, and NCCL is configured not to
// block: how it gets on is looked at by DoWork, at the pace of transport/poll_timer.h.
//
// What NCCL cannot do (CheckTransfer) goes over the kernels of transport/nvlink, which this lane
// has beside it: two members on one GPU, members on the host other than a broadcast's root, and
// averages whose divisor is not the number of GPUs. Transfers are counted by the way they went.
// Where kernels are missing, or GPUs do not reach each other, averages of floating point are scaled
// before they are summed, and the rest ends as refused, with both reasons. Results are the same
// bits on every member. What NCCL sums is summed in NCCL's own order: it is neither that of members
// nor the host lane's, float16 and bfloat16 are rounded as NCCL rounds them, and min and max of NaN
// are NCCL's.
//
// Cancel: pieces that are not given out are not; those that are get `cancel_patience_ns` to end,
// then NCCL's ranks are aborted. A group that is aborted, or fails, ends all of its transfers that
// are under way, each with the cause, once no GPU works on them any more; the next transfer forms a
// new one. Where even the abort does not end in `abort_timeout_ns`, transfers end with kInternal
// and words that say so, and the lane takes no more: only then may a GPU still write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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
  // Whether what NCCL does not take goes over kernels, with as many blocks of threads.
  bool kernels = true;
  // Called once, when the first transfer goes over kernels, with what NCCL does not take of it.
  std::function<void(const std::string& reason)> on_kernels{};
  TimeNs form_timeout_ns = 60 * kSecond;  // to make a group of GPUs ready
  TimeNs cancel_patience_ns = 200 * kMillisecond;
  TimeNs abort_timeout_ns = 10 * kSecond;
};

// Transfers that were taken, by the way they went.
struct NcclWays {
  std::uint64_t by_nccl = 0;
  std::uint64_t by_kernels = 0;
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

  // Whether NCCL can carry it out as the contract wants it; the error names the reason.
  static Status CheckTransfer(const Transfer& transfer);

  const Capabilities& capabilities() const override;
  [[nodiscard]] PostResult Post(const Transfer& transfer, TimeNs now) override;
  void Cancel(std::uint64_t token) override;
  bool DoWork(TimeNs now, std::vector<Completion>& completions) override;
  TimeNs NextLook() const override;

  // Any thread.
  NcclWays ways() const;

 private:
  struct Parts;
  explicit NcclTransport(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

}  // namespace headrace::transport
