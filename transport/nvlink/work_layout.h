// The division of a transfer: which GPUs work for it, how it is cut into pieces, and which bytes
// are each GPU's share of a piece. Pure: asks no GPU, allocates nothing.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "transport/nvlink/kernel_work.h"
#include "transport/runs.h"
#include "transport/transport.h"

namespace headrace::transport {

inline constexpr std::size_t kGpusMax = 64;
// A GPU is not called for less: its launch would cost more than its share saves.
inline constexpr std::size_t kShareSizeMin = std::size_t{64} << 10;
// Borders between shares are at multiples of it, so that they split no access of a kernel.
inline constexpr std::size_t kShareAlignment = 128;

enum class Work : std::uint8_t { kNothing, kReduce, kCopy };

// Memory of the members, and what is written, as a launch on one GPU sees it.
struct Buffers {
  std::uint32_t inputs_count = 0;
  std::uint32_t outputs_count = 0;
  std::array<const std::byte*, kMembersMax> inputs{};
  std::array<std::byte*, kMembersMax> outputs{};
  // Bit i: in one piece also where there are runs, or of one part only where others have all.
  std::uint64_t packed_inputs = 0;
  std::uint64_t packed_outputs = 0;
};

// Bytes for one GPU to move or sum: from all inputs, or of a copy from `first_input`, to the
// outputs [first_output, first_output + outputs_count).
struct GpuRange {
  std::uint64_t offset = 0;         // behind the pointers of memory with runs, or of all parts
  std::uint64_t packed_offset = 0;  // behind the others
  std::uint64_t size = 0;
  std::uint32_t first_input = 0;
  std::uint32_t first_output = 0;
  std::uint32_t outputs_count = 0;
};

class WorkLayout {
 public:
  WorkLayout() = default;
  WorkLayout(const Transfer& transfer, std::size_t piece_size);

  Work work() const { return work_; }
  // GPUs that work for it, by their place here; each by its ordinal.
  std::uint32_t gpus_count() const { return gpus_count_; }
  std::int8_t gpu(std::uint32_t place) const { return gpus_[place]; }
  std::uint64_t pieces_count() const { return pieces_count_; }
  // What a launch on the GPU gets.
  Buffers BuffersOf(const Transfer& transfer, std::uint32_t place) const;

  // Calls `visit(span)` for the GPU's share of a piece, in the order of memory.
  template <typename Visit>
  void ForEachRange(const Transfer& transfer, std::uint64_t piece, std::uint32_t place,
                    Visit visit) const {
    const std::uint64_t begin = piece * piece_count_;
    const std::uint64_t end = std::min(count_, begin + piece_count_);
    if (transfer.kind == Collective::kReduceScatter || transfer.kind == Collective::kAllGather) {
      return ForEachPart(transfer, begin, end, place, visit);
    }
    const Range share =
        work_ == Work::kReduce ? ShareOf(transfer, begin, end, place) : Range{begin, end};
    const std::uint32_t outputs_count = OutputsOf(transfer, place);
    if (outputs_count == 0) return;
    const std::size_t size = SizeOf(transfer.dtype);
    ForEachStretch(
        RunWalk(transfer), share.begin, share.end,
        [&](std::uint64_t element, std::uint64_t offset, std::uint64_t count) {
          visit(GpuRange{offset, element * size, count * size, source_, 0, outputs_count});
        });
  }

 private:
  struct Range {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };

  // Part by part, so that all GPUs work at the same piece.
  template <typename Visit>
  void ForEachPart(const Transfer& transfer, std::uint64_t begin, std::uint64_t end,
                   std::uint32_t place, Visit visit) const {
    const std::size_t size = SizeOf(transfer.dtype);
    const std::uint32_t own = OutputsOf(transfer, place);
    std::uint32_t before = 0;  // outputs of this GPU that are members before `member`
    for (std::uint32_t member = 0; member < transfer.members_count; ++member) {
      const std::uint64_t offset = (member * count_ + begin) * size;
      GpuRange span{offset, offset, (end - begin) * size, member, 0, 0};
      const bool is_own = place_of_[member] == place;
      if (transfer.kind == Collective::kReduceScatter) {
        const bool elsewhere = transfer.outputs[member] != nullptr;
        const std::uint64_t packed_offset = elsewhere ? begin * size : offset;
        if (is_own) visit(GpuRange{offset, packed_offset, span.size, 0, member, 1});
        continue;
      }
      span.outputs_count = before;
      if (before != 0) visit(span);
      if (is_own) ++before;
      span.first_output = before;
      span.outputs_count = own - before;
      if (own != before) visit(span);
    }
  }

  Range ShareOf(const Transfer& transfer, std::uint64_t begin, std::uint64_t end,
                std::uint32_t place) const;
  std::uint32_t OutputsOf(const Transfer& transfer, std::uint32_t place) const;
  bool IsTarget(const Transfer& transfer, std::uint32_t member, std::uint32_t place) const;

  Work work_ = Work::kNothing;
  std::uint32_t gpus_count_ = 0;
  std::uint32_t source_ = 0;       // of a copy to all others
  std::uint64_t count_ = 0;        // elements that are cut into pieces: all, or of one part
  std::uint64_t piece_count_ = 0;  // ... of one piece
  std::uint64_t pieces_count_ = 0;
  std::array<std::int8_t, kMembersMax> gpus_{};
  std::array<std::uint8_t, kMembersMax> place_of_{};  // by member: the GPU that works for it
};

}  // namespace headrace::transport
