// A sum that crosses as two factors of it (codec/low_rank.h): what this node computes before,
// between and after the sums of the factors, a bounded part at a time.
//
// The pieces of such a transfer are those of its factors, first of the left one, then of the right
// one, and are summed as float32 is without a codec. Pieces of the left factor are made when they
// begin. Once the last of them has ended, Step has to be called until the right factor is there,
// and once its last piece has ended, until the result is.
//
// Where a GPU has the matrix, it makes what takes the matrix: the left factor as a whole, before
// the first piece begins, the right one, by bounded parts, and the result. What takes factors alone
// is the host's, where they are summed. While the GPU is at work Step must not be called.
//
// Part of an open collective, on the lane's thread. A value; owns no memory and allocates none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "ipc/base/clock.h"
#include "ipc/base/result.h"
#include "transport/codec/low_rank.h"
#include "transport/exchange/collective_spec.h"
#include "transport/exchange/device_codec.h"
#include "transport/exchange/gpu_times.h"
#include "transport/exchange/piece_fault.h"
#include "transport/transport.h"

namespace headrace::transport {

class FactorSum {
 public:
  // One that does not exist.
  FactorSum() = default;
  // `values` and `residual` begin with the transfer's first element; no residual: null.
  FactorSum(const Transfer& transfer, const CollectiveSpec& spec, std::byte* values,
            std::byte* residual);
  // The GPU whose memory `values` is, and where it finds the residual. `codec` outlives it.
  void UseGpu(DeviceCodec& codec, std::int8_t device, const Transfer& transfer,
              std::byte* residual_on_gpus);

  bool exists() const { return phase_ != Phase::kNone; }
  bool done() const { return phase_ == Phase::kDone; }
  // Both factors, one behind the other: what is summed.
  std::byte* factors() const { return reinterpret_cast<std::byte*>(p_); }

  // A GPU is at work.
  bool awaits_gpu() const { return is_started_; }
  // Whether Step may be called, as far as a GPU has to do it.
  bool HasRoom() const { return codec_ == nullptr || codec_->HasRoom(device_); }
  // Where one was at work: false while it is. `times` are its group's; `fault` is why it failed.
  bool EndGpuWork(GpuTimes& times, CodecUse& use, std::optional<PieceFault>& fault);

  // Whether a GPU has to make the left factor first.
  bool lacks_left_factor() const { return phase_ == Phase::kProjectOnGpu; }
  // Makes elements of the left factor, whole rows of it, unless a GPU has.
  void Project(std::uint64_t begin, std::uint64_t count, CodecUse& use);
  // Whether the sum of the left factor, or its use, has to be there before the right one's pieces.
  bool lacks_right_factor() const { return phase_ != Phase::kNone && phase_ < Phase::kSummed; }
  // The next part, while no piece is under way.
  void Step(CodecUse& use);

 private:
  enum class Phase : std::uint8_t {
    kNone,
    kProjectOnGpu,
    kProject,
    kOrthogonalize,  // what all columns of the left factor have in common is added up
    kRestrict,       // the right factor is made, row by row
    kSummed,         // and summed by all
    kExpand,         // the result is made of both
    kDone,
  };

  // How many rows of the matrix, from the next one on, are worked on in one go.
  std::uint64_t RowsOfNextPart() const;
  std::uint64_t LeftRowsOfNextPart() const;
  MatrixRows RowsAt(std::uint64_t row, std::uint64_t rows) const;
  float* LeftOf(std::uint64_t row) const { return p_ + row * rank_; }
  void Orthogonalize();
  void Restrict();
  void RestrictOnGpu();
  void EndRestrict();
  void Expand(CodecUse& use);
  void EndExpand(CodecUse& use);
  void StartOnGpu();
  DeviceMatrix OnGpu() const;
  void SampleLeftOut(CodecUse& use) const;
  void WriteRows(const MatrixRows& rows, const float* p, CodecUse& use) const;
  std::uint64_t RightCount() const { return columns_ * rank_; }

  float* values_ = nullptr;
  float* residual_ = nullptr;
  float* p_ = nullptr;
  float* q_ = nullptr;       // from one sum of a matrix to the next
  float* own_q_ = nullptr;   // this node's part of it
  float* kept_q_ = nullptr;  // where it is kept, too; null: nowhere
  std::uint64_t rows_ = 0;
  std::uint64_t columns_ = 0;
  std::uint64_t next_row_ = 0;
  std::uint32_t rank_ = 0;
  std::uint32_t divisor_ = 1;
  Phase phase_ = Phase::kNone;
  bool finite_ = true;
  OrthonormalBasis basis_;

  DeviceCodec* codec_ = nullptr;  // null: the matrix is the host's
  std::int8_t device_ = kHost;
  float* residual_on_gpus_ = nullptr;
  float* factors_on_gpus_ = nullptr;
  float* factors_of_gpu_ = nullptr;
  std::uint64_t rows_on_gpu_ = 0;  // that the right factor is made of, the present ones included
  bool is_started_ = false;        // what this phase has for the GPU
  Status started_;
  std::uint64_t ticket_ = 0;
  TimeNs begin_ns_ = 0;
};

}  // namespace headrace::transport
