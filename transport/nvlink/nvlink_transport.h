// The lane between the GPUs of one node: each sums its share of the members' memory by reading it
// in place, over NVLink or PCIe, and writes the result to its place.
//
// A transfer is cut into pieces, a piece into one share for each GPU among its members. Shares are
// disjoint, and what a GPU writes only its own share has read, so GPUs never wait for each other.
// Sums are made by kernels, all_reduce by one that reads all members and writes all; moves are made
// by copy engines, except where they are many and small. Nothing here waits for a GPU: DoWork gives
// out a piece and looks whether earlier ones are done. A GPU wakes nobody, so the lane looks by
// itself, at the pace of transport/poll_timer.h.
//
// Memory on the host must have been pinned for all GPUs: as `output` of a reduce, written by every
// GPU over its own link, and as a member (its device is kHost), which is what brings memory to and
// from other nodes. At least one member must be a GPU's.
//
// Cancel: pieces that were not launched are not launched any more; those that were are finished
// first, then the transfer ends as kCancelled. A transfer whose last piece was launched ends
// normally. Failure: a refusal of the driver, or a broken context of a GPU, ends the transfer with
// its cause, once no other GPU works on it. A broken context stays broken: later transfers of that
// GPU end as kUnavailable with the same cause, those of others are not affected. Gpus::OnBroken
// reports it, so that the process can be started anew.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ipc/base/result.h"
#include "transport/memory/gpus.h"
#include "transport/transport.h"

namespace headrace::transport {

struct NvlinkOptions {
  // Blocks of threads of one launch: how much of a GPU sums may take from the trainer.
  std::uint32_t ctas = 16;
  // Bytes of one member's memory that are given out at a time; a multiple of 128.
  std::size_t piece_size = std::size_t{32} << 20;
  // Lets the switch between GPUs sum (NVLS) where it can: sums and averages of float32, float16 and
  // bfloat16 over one member on each of several GPUs, in memory that was imported in pieces and is
  // laid out alike. Such sums are made in the switch's order, so their bits are not the host's.
  bool multicast = false;
  // With it: called once with why there is none, at the start or when the first memory could not be
  // bound. Called from any thread; what it refers to outlives the GPUs.
  std::function<void(const std::string& reason)> on_no_multicast{};
};
inline constexpr std::uint32_t kNvlinkCtasMax = 1024;
inline constexpr std::size_t kNvlinkPieceSizeMax = std::size_t{1} << 30;

class NvlinkTransport final : public Transport {
 public:
  static constexpr std::uint32_t kTransfersMax = 64;

  // Loads the kernels onto every GPU; `gpus` must outlive the transport. Errors: what a GPU says,
  // and kUnavailable where the build had no nvcc, with the remedy.
  static Result<std::unique_ptr<NvlinkTransport>> Open(const Gpus& gpus,
                                                       const NvlinkOptions& options);
  // Waits for what was given out.
  ~NvlinkTransport() override;

  // Whether the GPUs that would work for it reach all of its memory; the error names those that do
  // not.
  Status CheckTransfer(const Transfer& transfer) const;

  // Transfers that the switch sums, so far; and why it does not, where it was asked for and cannot:
  // at all, or for the first memory that could not be bound. Any thread.
  std::uint64_t switched_count() const;
  std::string multicast_reason() const;

  const Capabilities& capabilities() const override;
  [[nodiscard]] PostResult Post(const Transfer& transfer, TimeNs now) override;
  void Cancel(std::uint64_t token) override;
  bool DoWork(TimeNs now, std::vector<Completion>& completions) override;
  TimeNs NextLook() const override;

 private:
  struct Parts;  // the GPUs' queues and the open transfers
  explicit NvlinkTransport(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

}  // namespace headrace::transport
