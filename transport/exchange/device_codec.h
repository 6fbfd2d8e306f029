// Encodes and decodes memory of GPUs where it lies (network.h says when the exchange does). What an
// encoding is read from and written to in the host's memory is pinned, so that GPUs reach it.
//
// Whoever starts something gets to know of its end by a ticket: GPUs wake nobody, so the exchange
// polls while it waits. What is started on a GPU is done in the order of the starts.
//
// All calls come from the lane's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "ipc/base/result.h"
#include "transport/codec/lossless.h"
#include "transport/codec/low_rank.h"
#include "transport/exchange/encoded.h"

namespace headrace::transport {

// Where the blocks of a lossless encoding begin, where the elements behind them do, and its bytes.
constexpr std::size_t LosslessTableCount(std::uint64_t count) {
  return LosslessBeginsCount(count) + 1;
}

// One that came, aligned to 4 bytes, as is its table of LosslessBeginsCount numbers; null: the
// elements are as they are.
struct LosslessMessage {
  const std::byte* in = nullptr;
  const std::uint32_t* table = nullptr;
};

// A matrix that crosses as two factors (codec/low_rank.h). The left one, the right one and the
// node's own part of it, one behind the other, are in memory of the GPU, and in pinned memory of
// the host, where they are summed.
struct DeviceMatrix {
  MatrixRows rows;  // all of them
  float* factors = nullptr;
  float* on_host = nullptr;  // those

  std::uint64_t LeftCount() const { return rows.rows * rows.rank; }
  std::uint64_t RightCount() const { return rows.columns * rows.rank; }
};

// Rows [begin, end) of it.
struct RowRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// So many rows at most are added to a right factor by one launch, for which others wait on the GPU.
// A thread adds row by row, and has eight on their way from memory (factor_bodies.h). If these take
// a microsecond, about the latency of a GPU's memory, so many rows take a millisecond, however few
// columns there are.
inline constexpr std::uint64_t kRightFactorRowsMax = 8192;

class DeviceCodec {
 public:
  virtual ~DeviceCodec() = default;

  // Those it has, bit (1 << Codec::Kind).
  virtual std::uint32_t codecs() const = 0;

  // Whether another piece may be begun: what is started waits in a stream of a GPU, which takes so
  // much. What goes on with a piece that was begun has room in any case.
  virtual bool HasRoom(std::int8_t device) const = 0;

  // As EncodeRange and DecodeSumRange, with all memory at its address on the GPU, and that of the
  // elements in one piece. An error is the driver's; nothing more is to be started for the range.
  virtual Status Encode(std::int8_t device, const EncodedRange& from, std::byte* out) = 0;
  virtual Status DecodeSum(std::int8_t device, std::span<const std::byte* const> inputs, bool onto,
                           std::uint32_t divisor, const EncodedRange& to) = 0;

  // As transport's AddResidual.
  virtual Status AddResidual(std::int8_t device, const EncodedRange& range) = 0;

  // As EncodeLosslessRange, or CopyRange. Writes a table (LosslessTableCount), whose last number is
  // the bytes: it and `out` are aligned to 4 bytes.
  virtual Status EncodeLossless(std::int8_t device, const EncodedRange& from, bool as_it_is,
                                std::byte* out, std::uint32_t* table) = 0;
  // As ReduceLosslessRange, of messages that make sense.
  virtual Status DecodeLossless(std::int8_t device, std::span<const LosslessMessage> messages,
                                std::size_t own, std::uint32_t divisor, const EncodedRange& to) = 0;

  // A matrix's steps, each of which reads and writes factors on the host. The first adds the
  // residual to the elements, once for all three, and makes the left factor of the right one.
  virtual Status MakeLeftFactor(std::int8_t device, const DeviceMatrix& matrix) = 0;
  // The second makes the node's own part of the right factor of the left one, which is orthonormal:
  // some rows' share of it, in their order. With the last rows it is there.
  virtual Status MakeRightFactor(std::int8_t device, const DeviceMatrix& matrix,
                                 const RowRange& rows) = 0;
  // The third writes what WriteProduct does, or WriteNotFinite, of both factors as they are.
  virtual Status WriteProduct(std::int8_t device, const DeviceMatrix& matrix, std::uint32_t divisor,
                              bool is_finite) = 0;

  // A ticket for all that was started on the GPU so far, also where the last start failed.
  virtual std::uint64_t TicketOf(std::int8_t device) const = 0;
  // How that has ended, as of the last Poll; nothing while it has not.
  virtual std::optional<Status> Ended(std::int8_t device, std::uint64_t ticket) const = 0;
  // Returns whether anything has ended.
  virtual bool Poll() = 0;
  // Until all that was started is done.
  virtual void Wait() = 0;
};

}  // namespace headrace::transport
