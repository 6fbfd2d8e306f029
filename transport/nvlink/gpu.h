// One GPU of the lane: its kernels, a stream for sums and one for moves, so that neither delays the
// other. One thread, the lane's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "ipc/base/result.h"
#include "transport/memory/gpus.h"
#include "transport/nvlink/kernel_work.h"
#include "transport/nvlink/kernels.h"
#include "transport/nvlink/stream_queue.h"
#include "transport/nvlink/work_layout.h"

namespace headrace::transport {

// Copy engines take a move of few copies, each of which is worth the start of an engine; else a
// kernel makes them all at once.
inline constexpr std::uint64_t kEngineCopySizeMin = std::uint64_t{64} << 10;

class Gpu {
 public:
  static Result<Gpu> Open(const Gpus& gpus, CuDevice device, std::uint32_t ctas);

  bool HasRoom(Work work) const { return QueueOf(work).HasRoom(); }

  // Gives out this GPU's share of a piece; `place` is the GPU's in the layout, `multicast` the
  // address of all members at once, 0 where there is none. Whatever it returns, PopEnded tells the
  // end of what is under way then.
  Status StartPiece(const Transfer& transfer, const WorkLayout& layout, std::uint64_t piece,
                    std::uint32_t place, CuAddress multicast, std::uint32_t slot,
                    bool& is_under_way);

  bool idle() const { return sums_.empty() && moves_.empty(); }
  // Calls `visit(slot, status)` for each share that is done, or that a broken context ended.
  template <typename Visit>
  void PopEnded(Visit visit) {
    if (idle()) return;
    const CurrentContext current(*driver_, context_);
    for (StreamQueue* queue : {&sums_, &moves_}) {
      for (auto ended = queue->PopEnded(); ended.any; ended = queue->PopEnded()) {
        visit(ended.slot, Outcome(ended.result, "sum or move"));
      }
    }
  }

  // Until all that was given out is done.
  void Wait();

 private:
  Gpu() = default;
  Status Outcome(CuResult result, std::string_view doing) const;
  StreamQueue& QueueOf(Work work) { return work == Work::kReduce ? sums_ : moves_; }
  const StreamQueue& QueueOf(Work work) const { return work == Work::kReduce ? sums_ : moves_; }
  // Whether copy engines are the better way to make these copies.
  static bool SuitsEngines(std::uint64_t copies, std::uint64_t size);

  Status MoveByEngines(const Transfer& transfer, const WorkLayout& layout, std::uint64_t piece,
                       std::uint32_t place);
  Status CopyRange(const GpuRange& span);
  Status RunKernels(const Transfer& transfer, const WorkLayout& layout, std::uint64_t piece,
                    std::uint32_t place, CuAddress multicast);
  void BeginWork(const Transfer& transfer, CuAddress multicast);
  void AddStretch(const GpuRange& span);
  // `switched` instead of `kernel` where memory lies so that it can.
  Status Launch(CuFunction kernel, CuFunction switched, CuStream stream);

  const CudaDriver* driver_ = nullptr;
  CuContext context_ = nullptr;
  std::uint32_t ctas_ = 1;
  Kernels kernels_;
  StreamQueue sums_;
  StreamQueue moves_;
  Buffers buffers_;  // of the piece that is being given out
  KernelWork work_{};
};

}  // namespace headrace::transport
