// The kernels as the build made them.
#pragma once

#include <string_view>

namespace headrace::transport {

// For cuModuleLoadData: a fatbin, or where the build had no nvcc a text that says so and that only
// a double of the driver takes for code.
const void* KernelImage();
inline constexpr std::string_view kNoKernelsRemedy =
    "the kernels were not compiled, because there was no nvcc: build where CUDA's toolkit is, or "
    "name its folder by HEADRACE_NVCC";
bool HasKernels();

}  // namespace headrace::transport
