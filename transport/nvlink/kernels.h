// The kernels on one GPU, found by what they do.
#pragma once

#include <array>
#include <cstddef>

#include "ipc/base/collective.h"
#include "ipc/base/result.h"
#include "transport/memory/cuda_handles.h"

namespace headrace::transport {

// Averages of integers have kernels of their own; those of all else are sums that are divided.
bool IsInteger(DType dtype);

class Kernels {
 public:
  // Loads them. kUnavailable where the build had no nvcc.
  static Result<Kernels> Load(const PrimaryContext& context);

  // Sums of a multicast address; null where there are none of the type.
  CuFunction Switched(DType dtype) const { return switched_[static_cast<std::size_t>(dtype)]; }

  CuFunction copy() const { return copy_; }
  // Averages of floating point have their sums' kernel.
  CuFunction Reduces(Reduction reduction, DType dtype) const {
    return reduces_[static_cast<std::size_t>(reduction)][static_cast<std::size_t>(dtype)];
  }

 private:
  static constexpr std::size_t kReductions = 6;  // numbers begin at 1
  static constexpr std::size_t kDTypes = 8;

  Status Find();

  CudaModule module_;
  CuFunction copy_ = nullptr;
  std::array<CuFunction, kDTypes> switched_{};
  std::array<std::array<CuFunction, kDTypes>, kReductions> reduces_{};
};

}  // namespace headrace::transport
