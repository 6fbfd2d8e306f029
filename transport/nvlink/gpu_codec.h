// The codecs of a lane between nodes on the GPUs of its node: kernels that read and write their
// memory, and pinned memory of the host for what crosses. Bits are those of transport/codec.
//
// One thread, the lane's, which has a stream on each GPU.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ipc/base/codecs.h"
#include "ipc/base/result.h"
#include "transport/exchange/device_codec.h"
#include "transport/memory/gpus.h"
#include "transport/nvlink/codec_work.h"
#include "transport/nvlink/stream_queue.h"

namespace headrace::transport {

class GpuCodec final : public DeviceCodec {
 public:
  // `gpus` outlives it. `ctas`: blocks of threads of a launch, at most. kUnavailable where the
  // build had no nvcc.
  static Result<std::unique_ptr<GpuCodec>> Open(const Gpus& gpus, std::uint32_t ctas);
  // Waits until all that was started is done.
  ~GpuCodec() override;

  std::uint32_t codecs() const override;
  bool HasRoom(std::int8_t device) const override;
  Status Encode(std::int8_t device, const EncodedRange& from, std::byte* out) override;
  Status DecodeSum(std::int8_t device, std::span<const std::byte* const> inputs, bool onto,
                   std::uint32_t divisor, const EncodedRange& to) override;
  Status AddResidual(std::int8_t device, const EncodedRange& range) override;
  Status EncodeLossless(std::int8_t device, const EncodedRange& from, bool as_it_is, std::byte* out,
                        std::uint32_t* table) override;
  Status DecodeLossless(std::int8_t device, std::span<const LosslessMessage> messages,
                        std::size_t own, std::uint32_t divisor, const EncodedRange& to) override;
  Status MakeLeftFactor(std::int8_t device, const DeviceMatrix& matrix) override;
  Status MakeRightFactor(std::int8_t device, const DeviceMatrix& matrix,
                         const RowRange& rows) override;
  Status WriteProduct(std::int8_t device, const DeviceMatrix& matrix, std::uint32_t divisor,
                      bool is_finite) override;
  std::uint64_t TicketOf(std::int8_t device) const override;
  std::optional<Status> Ended(std::int8_t device, std::uint64_t ticket) const override;
  bool Poll() override;
  void Wait() override;

 private:
  static constexpr std::size_t kKindsMax = 16;
  // Drivers hold back the caller once about a thousand operations wait in a stream.
  static constexpr std::size_t kLaunchesMax = 256;

  // What was started between two polls ends together, by one event.
  struct OnGpu {
    CuContext context = nullptr;
    CudaModule module;
    std::array<CuFunction, kKindsMax> encodes{};
    std::array<CuFunction, kKindsMax> decodes{};
    CuFunction add_residual = nullptr;
    CuFunction factor_add = nullptr;
    CuFunction left_factor = nullptr;
    CuFunction right_factor = nullptr;
    CuFunction factor_product = nullptr;
    StreamQueue queue;
    std::uint64_t batch = 1;             // that what is started now belongs to
    std::uint64_t batches_ended = 0;     // all up to this one
    std::size_t launches = 0;            // of the batch
    std::size_t launches_under_way = 0;  // of it and those before
    bool was_refused = false;            // a start, since the last poll
    std::array<std::size_t, kPiecesUnderWayMax> launches_of{};  // batches that have an event
    std::optional<Error> error{};  // the first, after which nothing is right any more
  };

  GpuCodec(const Gpus& gpus, std::uint32_t ctas) : gpus_(gpus), ctas_(ctas) {}
  Status OpenOn(const PrimaryContext& context);
  OnGpu& At(std::int8_t device);
  const OnGpu& At(std::int8_t device) const;
  // A kernel that works on elements and residuals, and writes so many bytes for a block.
  Status LaunchEncode(OnGpu& gpu, CuFunction kernel, std::size_t block_size,
                      const EncodedRange& from);
  Status Launch(OnGpu& gpu, CuFunction kernel, void* work, std::uint32_t count);
  Status LaunchOn(OnGpu& gpu, CuFunction kernel, void* work, std::uint32_t grid);
  static Status Refuse(OnGpu& gpu, Error why);
  // So many shares of a matrix, each for one warp.
  Status LaunchFactor(OnGpu& gpu, CuFunction kernel, FactorWork work, std::uint64_t items);
  Status CopyFactor(OnGpu& gpu, const float* from, float* to, std::uint64_t count);

  const Gpus& gpus_;
  const std::uint32_t ctas_;
  std::vector<OnGpu> each_;  // by ordinal
  EncodeWork encode_{};      // of the launch that is being made
  DecodeWork decode_{};
  LosslessDecodeWork decode_lossless_{};
};

}  // namespace headrace::transport
