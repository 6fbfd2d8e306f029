// The kernels of codecs: the bodies that nvcc compiles for GPUs, run here for every warp of a
// launch, one after the other.
#include "tests/support/cuda_double/machine.h"
#include "transport/nvlink/codec_list.h"

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
  if (!MayCode(device, work.out, BlocksIn(work.count) * block_size, true)) return false;
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

}  // namespace

void AddCodecKernels(std::map<std::string, Kernel>& kernels) {
#define HR_ADD_CODEC(codec, kind, Format)                                          \
  kernels["headrace_encode_" #codec] = {&RunEncode_##codec, {sizeof(EncodeWork)}}; \
  kernels["headrace_decode_" #codec] = {&RunDecode_##codec, {sizeof(DecodeWork)}};
  HR_CODEC_KERNELS(HR_ADD_CODEC)
}

}  // namespace headrace::cuda_double
