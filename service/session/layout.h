// A rank's gradients in forward order: what plans are made for. Equal on all ranks of a job, or
// the job has none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ipc/base/codec_choice.h"
#include "ipc/base/collective.h"
#include "ipc/base/ids.h"
#include "ipc/base/matrix.h"
#include "ipc/layout_limits.h"

namespace headrace::service {

using ipc::kLayoutTensorsMax;

// Gradients of fewer bytes cross as they are, where nobody names a codec for them: what they would
// save is not worth its error, nor a transfer of their own.
inline constexpr std::uint64_t kCompressedBytesMin = 4096;

// An iteration a nanosecond would take three days to get there.
inline constexpr std::uint64_t kIterationsBeforeMax = std::uint64_t{1} << 48;

struct LayoutTensor {
  std::string name;          // for people
  std::uint64_t offset = 0;  // bytes behind the lowest tensor of the layout
  std::uint64_t count = 0;   // elements, at least 1
  std::uint64_t rows = 0;    // of a matrix, row by row; 0: it is none
  DType dtype = DType::kFloat32;
  Codec codec = Codec::kNone;  // in which its sums cross between nodes
  bool keeps_codec = false;    // nobody else may choose another: not headracectl compress
  AllowedCodecs allowed{};     // of which plans choose one, or none; else `codec` it is

  // Whether its sums may cross in that codec: powersgd takes only some matrices.
  bool Fits(const Codec& of) const {
    return of.kind != Codec::kPowerSgd || (dtype == DType::kFloat32 && HasFactors(of, rows, count));
  }
  CodecChoice Choice() const { return allowed.empty() ? CodecChoice(codec) : CodecChoice(allowed); }

  std::uint64_t Bytes() const { return count * SizeOf(dtype); }
  std::uint64_t End() const { return offset + Bytes(); }

  friend bool operator==(const LayoutTensor&, const LayoutTensor&) = default;
};

// All tensors lie in one segment, do not overlap, and have one reduction, which is kSum or
// kAverage. Element types may differ.
struct Layout {
  Reduction reduction = Reduction::kAverage;
  std::vector<LayoutTensor> tensors;  // forward order: index 0 is needed first
  std::uint64_t names_hash = 0;       // HashNames of the names as the rank gave them, whole
  std::uint64_t compress_after = 0;   // so many iterations cross as they are before any is encoded
  // Iterations of the job's earlier epochs. Ranks may differ, by the one that was under way: the
  // largest counts.
  std::uint64_t iterations_before = 0;
  // The rank's optimizer divides by what gradients were, as Adam does. Known on its own node only.
  bool adaptive = false;

  friend bool operator==(const Layout&, const Layout&) = default;
};

// The alignment of residuals, which are what encodings leave out of gradients and laid out as these
// are.
inline constexpr std::uint64_t kResidualsAlignment = 64;

// Where a rank has room for residuals: from that byte of a segment of the host's memory on, and
// without a segment of that in which the gradients are, behind them. Behind the residuals there is
// room for the right factors of matrices of at most that rank; 0: there is none.
struct ResidualsPlace {
  std::optional<SegmentId> segment;
  std::uint64_t offset = 0;
  std::uint32_t factors_rank = 0;

  bool is_nowhere() const { return !segment && offset == 0; }
};
// One past the last byte of the layout, counted from its lowest tensor.
std::uint64_t EndOf(const Layout& layout);
// How many bytes behind the first residual each gradient's right factor has its room, and, as one
// more, where the last one's ends: what all of it takes.
std::vector<std::uint64_t> RightFactorOffsets(const Layout& layout, std::uint32_t factors_rank);

// One iteration of a job on one node, in seconds: of each gradient the last local rank counts.
// Times are what computing takes while the node's lanes are idle: what they cost it is taken off.
// Time 0 is the begin of the backward pass on the local rank that begins it last.
struct SeenIteration {
  std::uint64_t iteration = 0;
  double offset_s = 0;           // from the end of the last block of the iteration before to time 0
  double forward_begin_s = 0;    // when the next forward pass would ask for the first gradient
  std::vector<float> release_s;  // per tensor in forward order, until it was posted
  std::vector<float> forward_s;  // what the next forward pass spent on it, its update included

  friend bool operator==(const SeenIteration&, const SeenIteration&) = default;
};

// How the iterations of a job went on one node: per tensor in forward order, in seconds, medians
// over some iterations, of the slowest local rank.
struct NodeTimes {
  std::uint64_t iteration = 0;    // the last of them
  std::vector<double> release_s;  // from the begin of the backward pass to the post
  std::vector<double> forward_s;  // what the forward pass spent on it, without waits
  double iteration_s = 0;         // from one backward pass to the next
  double running_s = 0;           // of it: the forward pass did not stand still; 0: not known
  // The last ones by themselves, at most plan::kRecordedMax, and the share of the rate of computing
  // that is lost while a block is under way.
  std::vector<SeenIteration> iterations{};
  double contention = 0;
};

}  // namespace headrace::service
