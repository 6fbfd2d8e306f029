// The kernels of codecs: the bodies that nvcc compiles for GPUs, run here for every warp of a
// launch, one after the other.
#include "tests/support/cuda_double/machine.h"
#include "transport/nvlink/codec_list.h"
#include "transport/nvlink/factor_bodies.h"
#include "transport/nvlink/lossless_bodies.h"

namespace headrace::cuda_double {
namespace {

using namespace headrace::transport::kernels;  // NOLINT(google-build-using-namespace): its list

bool MayCode(CuDevice device, const void* at, std::size_t size, bool writes) {
  return headrace_cuda_double_may_touch(device, AddressOf(at), size, writes ? 1 : 0) != 0;
}

// Whether the GPU may touch all that the kernel will; else its context is broken, as by a real
// kernel's first such access.
bool MayCode(CuDevice device, const EncodeWork& work, std::size_t block_size) {
  if (!MayCode(device, work.values, work.count * sizeof(float), false)) return false;
  if (block_size > 0 && !MayCode(device, work.out, BlocksIn(work.count) * block_size, true)) {
    return false;
  }
  if (work.residual == nullptr) return true;
  for (std::uint32_t i = 0; i < work.stretches_count; ++i) {
    const std::uint32_t end = i + 1 < work.stretches_count ? work.begins[i + 1] : work.count;
    const std::size_t size = (end - work.begins[i]) * sizeof(float);
    if (!MayCode(device, work.residual + work.offsets[i], size, true)) return false;
  }
  return true;
}

bool MayCode(CuDevice device, const DecodeWork& work, std::size_t block_size) {
  for (std::uint32_t i = 0; i < work.inputs_count; ++i) {
    if (!MayCode(device, work.inputs[i], BlocksIn(work.count) * block_size, false)) return false;
  }
  return MayCode(device, work.out, work.count * sizeof(float), true);
}

template <class Format, class Work>
void RunWarps(const CudaDoubleLaunch& launch,
              void (*body)(const Work&, std::uint32_t, std::uint32_t)) {
  const auto& work = *static_cast<const Work*>(launch.parameters[0]);
  if (!MayCode(launch.device, work, Format::Size(work.kept))) return;
  const std::uint32_t warps = launch.grid[0] * launch.block[0] / kLanes;
  for (std::uint32_t warp = 0; warp < warps; ++warp) body(work, warp, warps);
}

#define HR_RUN_CODEC(codec, kind, Format)                      \
  void RunEncode_##codec(const CudaDoubleLaunch* launch) {     \
    RunWarps<Format, EncodeWork>(*launch, EncodeBody<Format>); \
  }                                                            \
  void RunDecode_##codec(const CudaDoubleLaunch* launch) {     \
    RunWarps<Format, DecodeWork>(*launch, DecodeBody<Format>); \
  }
HR_CODEC_KERNELS(HR_RUN_CODEC)

std::uint32_t WarpsOf(const CudaDoubleLaunch& launch) {
  return launch.grid[0] * launch.block[0] / kLanes;
}

void RunAddResidual(const CudaDoubleLaunch* launch) {
  const auto& work = *static_cast<const EncodeWork*>(launch->parameters[0]);
  if (!MayCode(launch->device, work, 0)) return;
  if (!MayCode(launch->device, work.values, work.count * sizeof(float), true)) return;
  for (std::uint32_t warp = 0; warp < WarpsOf(*launch); ++warp) {
    AddResidualBody(work, warp, WarpsOf(*launch));
  }
}

void RunEncodeLossless(const CudaDoubleLaunch* launch) {
  const auto& work = *static_cast<const LosslessEncodeWork*>(launch->parameters[0]);
  const std::size_t size = work.count * sizeof(float);
  const std::size_t table_size = (work.count / kBlockCount + 2) * sizeof(std::uint32_t);
  if (!MayCode(launch->device, work.values, size, false) ||
      !MayCode(launch->device, work.out, size, true) ||
      !MayCode(launch->device, work.table, table_size, true)) {
    return;
  }
  // Only threads of one block meet.
  if (launch->grid[0] != 1) abort();
  const std::uint32_t warps = WarpsOf(*launch);
  LosslessScratch scratch{};
  for (std::uint32_t warp = 0; warp < warps; ++warp) MeasureLosslessBody(work, warp, warps);
  PlaceLosslessBody(work);
  for (std::uint32_t warp = 0; warp < warps; ++warp) WriteLosslessBody(work, warp, warps, scratch);
}

// What the table says is what the host has checked, or a kernel has written.
std::size_t SizeOf(const LosslessInput& input, std::uint32_t count) {
  if (input.table == nullptr) return count * sizeof(float);
  for (std::uint32_t block = 0; block < count / kBlockCount; ++block) {
    if (input.table[block + 1] - input.table[block] > LosslessBlock::kSizeMax) abort();
  }
  return input.table[count / kBlockCount] + count % kBlockCount * sizeof(float);
}

void RunDecodeLossless(const CudaDoubleLaunch* launch) {
  const auto& work = *static_cast<const LosslessDecodeWork*>(launch->parameters[0]);
  const std::size_t table_size = (work.count / kBlockCount + 1) * sizeof(std::uint32_t);
  for (std::uint32_t i = 0; i < work.inputs_count; ++i) {
    const LosslessInput& input = work.inputs[i];
    if (input.table != nullptr && !MayCode(launch->device, input.table, table_size, false)) return;
    if (!MayCode(launch->device, input.in, SizeOf(input, work.count), false)) return;
  }
  if (!MayCode(launch->device, work.out, work.count * sizeof(float), true)) return;
  LosslessScratch scratch{};
  const std::uint32_t warps = WarpsOf(*launch);
  for (std::uint32_t warp = 0; warp < warps; ++warp) {
    DecodeLosslessBody(work, warp, warps, scratch);
  }
}

bool MayCode(CuDevice device, const FactorWork& work) {
  const std::size_t size = work.rows * work.columns * sizeof(float);
  const std::size_t left = work.rows * work.rank * sizeof(float);
  const std::size_t right = work.columns * work.rank * sizeof(float);
  return MayCode(device, work.values, size, true) &&
         (work.residual == nullptr || MayCode(device, work.residual, size, true)) &&
         MayCode(device, work.p, left, true) && MayCode(device, work.q, right, true) &&
         MayCode(device, work.own_q, right, false);
}

#define HR_RUN_FACTORS(name, Body)                                              \
  void Run_##name(const CudaDoubleLaunch* launch) {                             \
    const auto& work = *static_cast<const FactorWork*>(launch->parameters[0]);  \
    if (!MayCode(launch->device, work)) return;                                 \
    const std::uint32_t warps = WarpsOf(*launch);                               \
    for (std::uint32_t warp = 0; warp < warps; ++warp) Body(work, warp, warps); \
  }
HR_FACTOR_KERNELS(HR_RUN_FACTORS)

}  // namespace

void AddCodecKernels(std::map<std::string, Kernel>& kernels) {
#define HR_ADD_CODEC(codec, kind, Format)                                          \
  kernels["headrace_encode_" #codec] = {&RunEncode_##codec, {sizeof(EncodeWork)}}; \
  kernels["headrace_decode_" #codec] = {&RunDecode_##codec, {sizeof(DecodeWork)}};
  HR_CODEC_KERNELS(HR_ADD_CODEC)
  kernels["headrace_add_residual"] = {&RunAddResidual, {sizeof(EncodeWork)}};
#define HR_ADD_FACTORS(name, Body) kernels["headrace_" #name] = {&Run_##name, {sizeof(FactorWork)}};
  HR_FACTOR_KERNELS(HR_ADD_FACTORS)
  kernels["headrace_encode_lossless"] = {&RunEncodeLossless, {sizeof(LosslessEncodeWork)}};
  kernels["headrace_decode_lossless"] = {&RunDecodeLossless, {sizeof(LosslessDecodeWork)}};
}

}  // namespace headrace::cuda_double
