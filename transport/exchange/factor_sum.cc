#include "transport/exchange/factor_sum.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "ipc/base/check.h"
#include "ipc/base/clock.h"
#include "ipc/base/matrix.h"
#include "transport/codec/block_size.h"
#include "transport/codec/codec.h"
#include "transport/exchange/partition.h"

namespace headrace::transport {
namespace {

// Elements of a part of the result that tell how much is left out of it.
constexpr std::uint64_t kSampledMax = 64;

void AddSample(double value, double left_out, CodecUse& use) {
  if (!std::isfinite(value) || !std::isfinite(left_out)) return;
  use.sum_squares += value * value;
  use.residual_squares += left_out * left_out;
}

}  // namespace

FactorSum::FactorSum(const Transfer& transfer, const CollectiveSpec& spec, std::byte* values,
                     std::byte* residual)
    : values_(reinterpret_cast<float*>(values)),
      residual_(reinterpret_cast<float*>(residual)),
      p_(reinterpret_cast<float*>(transfer.factors)),
      q_(p_ + transfer.rows * spec.codec.parameter),
      own_q_(q_ + transfer.count / transfer.rows * spec.codec.parameter),
      kept_q_(reinterpret_cast<float*>(transfer.right_factor)),
      rows_(spec.rows),
      columns_(spec.count / spec.rows),
      rank_(spec.codec.parameter),
      divisor_(spec.reduction == Reduction::kAverage ? spec.divisor : 1),
      phase_(Phase::kProject),
      basis_(spec.codec.parameter) {
  if (kept_q_ != nullptr) std::copy_n(kept_q_, RightCount(), q_);
  PrepareRightFactor(q_, columns_, rank_, transfer.seed);
}

void FactorSum::UseGpu(DeviceCodec& codec, std::int8_t device, const Transfer& transfer,
                       std::byte* residual_on_gpus) {
  HR_CHECK(transfer.factors_on_gpus != nullptr && transfer.factors_of_gpu != nullptr, device);
  HR_CHECK((residual_ == nullptr) == (residual_on_gpus == nullptr), device);
  codec_ = &codec;
  device_ = device;
  residual_on_gpus_ = reinterpret_cast<float*>(residual_on_gpus);
  factors_on_gpus_ = reinterpret_cast<float*>(transfer.factors_on_gpus);
  factors_of_gpu_ = reinterpret_cast<float*>(transfer.factors_of_gpu);
  phase_ = Phase::kProjectOnGpu;
}

MatrixRows FactorSum::RowsAt(std::uint64_t row, std::uint64_t rows) const {
  const std::uint64_t offset = row * columns_;
  return {.values = values_ + offset,
          .residual = residual_ == nullptr ? nullptr : residual_ + offset,
          .rows = rows,
          .columns = columns_,
          .rank = rank_};
}

std::uint64_t FactorSum::RowsOfNextPart() const {
  const std::uint64_t most = std::max<std::uint64_t>(1, kEncodedPieceCountMax / columns_);
  return std::min(most, rows_ - next_row_);
}

void FactorSum::Project(std::uint64_t begin, std::uint64_t count, CodecUse& use) {
  HR_CHECK(phase_ == Phase::kProject && begin % rank_ == 0 && count % rank_ == 0, begin, count);
  if (codec_ != nullptr) return;
  const TimeNs start = MonotonicNow();
  MultiplyByRightFactor(RowsAt(begin / rank_, count / rank_), q_, p_ + begin);
  use.encode_ns += MonotonicNow() - start;
}

void FactorSum::Step(CodecUse& use) {
  HR_CHECK(!is_started_, static_cast<int>(phase_));
  if (phase_ == Phase::kProject) phase_ = Phase::kOrthogonalize;
  if (phase_ == Phase::kSummed) {
    phase_ = Phase::kExpand;
    finite_ = finite_ && AllFinite(q_, RightCount());
  }
  const TimeNs start = MonotonicNow();
  switch (phase_) {
    case Phase::kProjectOnGpu:
      return StartOnGpu();
    case Phase::kOrthogonalize:
      Orthogonalize();
      break;
    case Phase::kRestrict:
      Restrict();
      break;
    case Phase::kExpand:
      if (codec_ != nullptr) return StartOnGpu();
      Expand(use);
      use.decode_ns += MonotonicNow() - start;
      return;
    case Phase::kNone:
    case Phase::kProject:
    case Phase::kSummed:
    case Phase::kDone:
      HR_CHECK(false, static_cast<int>(phase_));
  }
  use.encode_ns += MonotonicNow() - start;
}

// Rows of the left factor have products as rows of the matrix have elements.
std::uint64_t FactorSum::LeftRowsOfNextPart() const {
  const std::uint64_t most =
      std::max<std::uint64_t>(1, kEncodedPieceCountMax / (std::uint64_t{rank_} * rank_));
  return std::min(most, rows_ - next_row_);
}

void FactorSum::Orthogonalize() {
  const std::uint64_t rows = LeftRowsOfNextPart();
  basis_.Add(LeftOf(next_row_), rows);
  next_row_ += rows;
  if (next_row_ < rows_) return;
  finite_ = basis_.Finish();
  std::fill_n(own_q_, RightCount(), 0.0F);
  std::fill_n(q_, RightCount(), 0.0F);
  next_row_ = 0;
  // All nodes have the same sum, and leave the rest out alike.
  phase_ = finite_ ? Phase::kRestrict : Phase::kSummed;
}

void FactorSum::Restrict() {
  if (codec_ != nullptr) return RestrictOnGpu();
  const std::uint64_t rows = RowsOfNextPart();
  basis_.Replace(LeftOf(next_row_), rows);
  AddToRightFactor(RowsAt(next_row_, rows), LeftOf(next_row_), own_q_);
  next_row_ += rows;
  if (next_row_ == rows_) EndRestrict();
}

// The GPU begins once all of the left factor is there.
void FactorSum::RestrictOnGpu() {
  if (next_row_ < rows_) {
    const std::uint64_t rows = LeftRowsOfNextPart();
    basis_.Replace(LeftOf(next_row_), rows);
    next_row_ += rows;
  }
  if (next_row_ == rows_) StartOnGpu();
}

void FactorSum::EndRestrict() {
  std::copy_n(own_q_, RightCount(), q_);
  next_row_ = 0;
  phase_ = Phase::kSummed;
}

void FactorSum::Expand(CodecUse& use) {
  const std::uint64_t rows = RowsOfNextPart();
  WriteRows(RowsAt(next_row_, rows), LeftOf(next_row_), use);
  next_row_ += rows;
  if (next_row_ == rows_) EndExpand(use);
}

void FactorSum::EndExpand(CodecUse& use) {
  // The next sum begins anew.
  if (!finite_) {
    std::fill_n(q_, RightCount(), 0.0F);
    use.not_finite_blocks += CodecBlocks(rows_ * columns_);
  }
  if (kept_q_ != nullptr) std::copy_n(q_, RightCount(), kept_q_);
  phase_ = Phase::kDone;
}

DeviceMatrix FactorSum::OnGpu() const {
  DeviceMatrix matrix{
      .rows = RowsAt(0, rows_), .factors = factors_of_gpu_, .on_host = factors_on_gpus_};
  matrix.rows.residual = residual_on_gpus_;
  return matrix;
}

void FactorSum::StartOnGpu() {
  begin_ns_ = MonotonicNow();
  if (phase_ == Phase::kProjectOnGpu) {
    started_ = codec_->MakeLeftFactor(device_, OnGpu());
  } else if (phase_ == Phase::kRestrict) {
    const std::uint64_t begin = rows_on_gpu_;
    rows_on_gpu_ = std::min(rows_, begin + kRightFactorRowsMax);
    started_ = codec_->MakeRightFactor(device_, OnGpu(), {begin, rows_on_gpu_});
  } else {
    started_ = codec_->WriteProduct(device_, OnGpu(), divisor_, finite_);
  }
  ticket_ = codec_->TicketOf(device_);
  is_started_ = true;
}

bool FactorSum::EndGpuWork(GpuTimes& times, CodecUse& use, std::optional<PieceFault>& fault) {
  if (!is_started_) return false;
  const std::optional<Status> ended = codec_->Ended(device_, ticket_);
  if (!ended) return false;
  is_started_ = false;
  if (!started_ || !*ended) {
    const Error& cause = started_ ? ended->error() : started_.error();
    const Error error = cause.Within("GPU " + std::to_string(device_));
    fault = PieceFault{.message = std::nullopt, .code = error.code(), .what = error.text()};
    return true;
  }
  const TimeNs took_ns = times.OnEnded(device_, begin_ns_, MonotonicNow());
  if (phase_ == Phase::kExpand) {
    use.decode_ns += took_ns;
    SampleLeftOut(use);
    EndExpand(use);
    return true;
  }
  use.encode_ns += took_ns;
  if (phase_ == Phase::kRestrict) {
    // Others have their turn on the GPU before the next rows.
    if (rows_on_gpu_ == rows_) EndRestrict();
  } else {
    phase_ = Phase::kProject;
  }
  return true;
}

// As WriteRows does, of what this processor can read: elements are the node's part of the product
// and what is left out of them.
void FactorSum::SampleLeftOut(CodecUse& use) const {
  if (!finite_ || residual_ == nullptr) return;
  const std::uint64_t part =
      std::max<std::uint64_t>(1, kEncodedPieceCountMax / columns_) * columns_;
  for (std::uint64_t begin = 0; begin < rows_ * columns_; begin += part) {
    const std::uint64_t count = std::min({kSampledMax, part, rows_ * columns_ - begin});
    for (std::uint64_t at = begin; at < begin + count; ++at) {
      auto value = double{residual_[at]};
      for (std::uint32_t k = 0; k < rank_; ++k) {
        value += double{LeftOf(at / columns_)[k]} * double{own_q_[k * columns_ + at % columns_]};
      }
      AddSample(value, double{residual_[at]}, use);
    }
  }
}

void FactorSum::WriteRows(const MatrixRows& rows, const float* p, CodecUse& use) const {
  if (!finite_) return WriteNotFinite(rows);
  std::array<float, kSampledMax> sampled{};
  const std::uint64_t count =
      residual_ == nullptr ? 0 : std::min(kSampledMax, rows.rows * rows.columns);
  for (std::uint64_t i = 0; i < count; ++i) sampled[i] = rows.values[i] + rows.residual[i];
  WriteProduct(rows, p, q_, own_q_, divisor_);
  for (std::uint64_t i = 0; i < count; ++i) {
    AddSample(double{sampled[i]}, double{rows.residual[i]}, use);
  }
}

}  // namespace headrace::transport
