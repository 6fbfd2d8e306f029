// The bytes of pieces: where each lies, what is sent of it and received for it, its sums and its
// encodings.
//
// Part of Collectives, on the lane's thread. Owns the group's staging, but not the memory that it
// lies in. Allocates nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "transport/exchange/choose.h"
#include "transport/exchange/device_codec.h"
#include "transport/exchange/encoded.h"
#include "transport/exchange/gpu_times.h"
#include "transport/exchange/lossless_gain.h"
#include "transport/exchange/open_collectives.h"
#include "transport/exchange/server_sums.h"
#include "transport/exchange/staging.h"
#include "transport/exchange/staging_pin.h"
#include "transport/network.h"

namespace headrace::transport {

class PieceMemory {
 public:
  // The others outlive it. A server has no memory of its own, and sums in staging.
  PieceMemory(const GroupOptions& options, bool is_server, ServerSums& server_sums,
              std::shared_ptr<DeviceCodec> device_codec);
  ~PieceMemory();
  PieceMemory(const PieceMemory&) = delete;
  PieceMemory& operator=(const PieceMemory&) = delete;

  // What a byte costs on the wire, as far as is known.
  void SetSecondsPerByte(double seconds) { s_per_byte_ = seconds; }
  // So many slots for messages of at most that size: what they take, and where they are.
  std::size_t StagingSize(std::size_t message_size, std::uint32_t slots_count) const;
  void SetStaging(std::span<std::byte> memory, std::size_t message_size, std::uint32_t slots_count);
  std::span<std::byte> staging() const { return staging_.memory(); }

  // Without one all memory is the processor's, whatever a transfer says of devices.
  bool has_device_codec() const { return device_codec_ != nullptr; }
  DeviceCodec* device_codec() const { return device_codec_.get(); }
  // For memory of GPUs: has the staging pinned, once.
  void MakeReady(const OpenCollective& collective);
  // Returns why it cannot be pinned, and the remedy.
  std::optional<Error> OnStaging(const Result<std::byte*>& on_gpus);
  StagingPin& pin() { return pin_; }
  const StagingPin& pin() const { return pin_; }
  // Whether a piece may begin, as far as a GPU has to encode it.
  bool HasRoom(const OpenCollective& collective) const {
    return !collective.on_gpu() || (pin_.is_pinned() && device_codec_->HasRoom(collective.device));
  }
  // For a piece that awaits its GPU: false while it is at work. `fault` is why it failed.
  bool EndCodec(OpenCollective& collective, OpenPiece& piece, std::optional<PieceFault>& fault);

  // Shared by pieces and by matrices that cross as factors.
  GpuTimes& gpu_times() { return gpu_times_; }

  // Takes the slots that the piece needs, and prepares what it sends first.
  void Begin(OpenCollective& collective, OpenPiece& piece);
  // Before a round: what is sent in it may await its GPU first.
  void PrepareRound(OpenCollective& collective, OpenPiece& piece);
  // What the piece sends in this round, with its size.
  void BeginRound(OpenCollective& collective, OpenPiece& piece, const Round& round);
  const std::byte* SentBytes(const OpenCollective& collective, const OpenPiece& piece) const {
    return Source(collective, piece);
  }
  // Where the round's message number `receive` goes.
  std::byte* ReceivedBytes(const OpenCollective& collective, const OpenPiece& piece,
                           const Round& round, std::size_t receive) const;
  // Whether a message that is received in the round may have that size.
  bool MayReceive(const OpenCollective& collective, const OpenPiece& piece, const Round& round,
                  std::size_t size) const;
  // All messages of the round have ended: sums and decodes them. Returns why that cannot be.
  std::optional<PieceFault> EndRound(OpenCollective& collective, OpenPiece& piece,
                                     const Round& round);
  // The last round has ended: puts the result where it belongs.
  void PutResult(const OpenCollective& collective, const OpenPiece& piece) {
    if (piece.gathered) Scatter(collective, piece);
  }
  // Gives the slots back.
  void Release(const OpenPiece& piece);

 private:
  std::size_t SlotSize(std::size_t message_size) const;
  std::size_t InputsOf(const OpenPiece& piece, const Round& round, const std::byte* own,
                       std::array<const std::byte*, kNodesMax>& inputs) const;
  void Sum(const OpenCollective& collective, const OpenPiece& piece, const Round& round);
  void SumEncoded(OpenCollective& collective, OpenPiece& piece, const Round& round);
  std::optional<PieceFault> SumServed(const OpenCollective& collective, OpenPiece& piece,
                                      const Round& round);
  std::optional<PieceFault> ReduceLossless(OpenCollective& collective, OpenPiece& piece,
                                           const Round& round);
  std::optional<std::size_t> ReduceLosslessOnGpu(
      OpenCollective& collective, OpenPiece& piece,
      std::span<const std::span<const std::byte>> messages, std::size_t own, std::uint32_t divisor);
  void NoteReduced(OpenCollective& collective, const OpenPiece& piece, const Round& round,
                   TimeNs took_ns);
  void EndLossless(OpenCollective& collective, OpenPiece& piece, TimeNs took_ns);
  void DecodeResult(OpenCollective& collective, OpenPiece& piece);
  void Encode(OpenCollective& collective, OpenPiece& piece);
  void NoteEncoded(OpenCollective& collective, const OpenPiece& piece);
  void DecodeSum(OpenCollective& collective, OpenPiece& piece,
                 std::span<const std::byte* const> inputs, bool onto, std::uint32_t divisor);
  void AwaitCodec(const OpenCollective& collective, OpenPiece& piece, const Status& started);
  std::byte* OnGpus(const std::byte* address) const {
    return pin_.OnGpus(staging_.memory(), address);
  }
  EncodedRange RangeOnGpu(const OpenCollective& collective, const OpenPiece& piece) const;
  // Where GPUs find the blocks of the message in the slot.
  std::uint32_t* TableOf(const std::byte* slot) const {
    return reinterpret_cast<std::uint32_t*>(const_cast<std::byte*>(slot) + table_at_);
  }
  // By a GPU.
  std::uint32_t EncodedLosslessSize(const OpenPiece& piece) const {
    return TableOf(staging_.At(piece.own_slot))[LosslessTableCount(piece.range.count) - 1];
  }
  // Or copies it, where coding does not pay.
  void EncodeLossless(OpenCollective& collective, OpenPiece& piece);
  EncodedRange EncodedRangeOf(const OpenCollective& collective, const OpenPiece& piece) const;
  std::uint64_t SeedOf(const OpenCollective& collective) const;
  void Gather(const OpenCollective& collective, const OpenPiece& piece);
  void Scatter(const OpenCollective& collective, const OpenPiece& piece);
  std::byte* Own(const OpenCollective& collective, const OpenPiece& piece) const;
  std::byte* Target(const OpenCollective& collective, const OpenPiece& piece) const;
  std::byte* Source(const OpenCollective& collective, const OpenPiece& piece) const;

  const GroupOptions& options_;
  const bool is_server_;
  ServerSums& server_sums_;
  Staging staging_;
  std::size_t table_at_ = 0;  // behind the message in a slot
  double s_per_byte_ = kCostUnmeasured.s_per_byte;
  LosslessGain lossless_;
  const std::shared_ptr<DeviceCodec> device_codec_;  // null: there is none; see ExchangeOptions
  StagingPin pin_;
  std::optional<Error> device_error_;  // the first
  GpuTimes gpu_times_;
};

}  // namespace headrace::transport
