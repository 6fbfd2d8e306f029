#include "transport/nvlink/kernels.h"

#include <fmt/format.h>

#include <string>

#include "transport/nvlink/kernel_image.h"

namespace headrace::transport {
namespace {

constexpr DType kDTypesOfAll[] = {DType::kFloat32,  DType::kFloat64, DType::kFloat16,
                                  DType::kBFloat16, DType::kInt32,   DType::kInt64,
                                  DType::kUInt8};
constexpr Reduction kReductionsOfAll[] = {Reduction::kSum, Reduction::kAverage, Reduction::kMin,
                                          Reduction::kMax, Reduction::kProduct};

}  // namespace

bool IsInteger(DType dtype) {
  return dtype == DType::kInt32 || dtype == DType::kInt64 || dtype == DType::kUInt8;
}

Result<Kernels> Kernels::Load(const PrimaryContext& context) {
  Kernels kernels;
  auto module = LoadModule(context, KernelImage());
  if (!module) {
    if (HasKernels()) return module.error();
    return Error(Code::kUnavailable,
                 fmt::format("{} ({})", kNoKernelsRemedy, module.error().text()));
  }
  kernels.module_ = std::move(*module);
  if (auto done = kernels.Find(); !done) return done.error();
  return kernels;
}

Status Kernels::Find() {
  const auto find = [this](const std::string& name, CuFunction& place) -> Status {
    const auto found = FindKernel(module_, name.c_str());
    if (!found) return found.error();
    place = *found;
    return {};
  };
  if (auto done = find("headrace_copy", copy_); !done) return done;
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    const auto name = fmt::format("headrace_switched_{}", Name(dtype));
    if (auto done = find(name, switched_[static_cast<std::size_t>(dtype)]); !done) return done;
  }
  for (const DType dtype : kDTypesOfAll) {
    for (const Reduction reduction : kReductionsOfAll) {
      const bool is_sum = reduction == Reduction::kAverage && !IsInteger(dtype);
      const auto name =
          fmt::format("headrace_{}_{}", Name(is_sum ? Reduction::kSum : reduction), Name(dtype));
      CuFunction& place =
          reduces_[static_cast<std::size_t>(reduction)][static_cast<std::size_t>(dtype)];
      if (auto done = find(name, place); !done) return done;
    }
  }
  return {};
}

}  // namespace headrace::transport
