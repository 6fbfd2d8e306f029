#include "tests/support/cuda_double/doubled_driver.h"

#include <dlfcn.h>

#include <cstdlib>

#include "ipc/base/check.h"

namespace headrace::cuda_double {

std::string LibraryPath() { return HEADRACE_CUDA_DOUBLE_LIBRARY; }

Environment::Environment(std::initializer_list<Variable> variables) {
  for (const Variable& variable : variables) {
    names_.push_back("HEADRACE_CUDA_DOUBLE_" + variable.name);
    ::setenv(names_.back().c_str(), variable.value.c_str(), 1);
  }
}

Environment::~Environment() {
  for (const std::string& name : names_) ::unsetenv(name.c_str());
}

Doubled LoadDouble() {
  void* library = ::dlopen(LibraryPath().c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  HR_CHECK(library != nullptr, ::dlerror());
  const transport::Library closes(library);
  Doubled doubled;
  const auto find = [&](auto& function, const char* name) {
    void* symbol = ::dlsym(library, name);
    HR_CHECK(symbol != nullptr, name);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
  };
  find(doubled.counts, "headrace_cuda_double_counts");
  find(doubled.restart, "headrace_cuda_double_restart");
  find(doubled.fail, "headrace_cuda_double_fail");
  find(doubled.breaks, "headrace_cuda_double_break");
  find(doubled.kernel, "headrace_cuda_double_kernel");
  find(doubled.may_touch, "headrace_cuda_double_may_touch");
  find(doubled.launch_ex, "cuLaunchKernelEx");
  return doubled;
}

Result<std::unique_ptr<transport::CudaDriver>> OpenDouble() {
  HR_CHECK(LoadDouble().restart() == 1, "a test before this one left something behind");
  return transport::CudaDriver::Open(LibraryPath());
}

std::vector<std::uint64_t> CountsOf(const Doubled& doubled) {
  CudaDoubleCounts counts{};
  doubled.counts(&counts);
  return {counts.context_uses, counts.memory_handles,  counts.reservations,       counts.mappings,
          counts.allocations,  counts.legacy_mappings, counts.host_registrations, counts.streams,
          counts.events,       counts.modules,         counts.lost_with_context};
}

}  // namespace headrace::cuda_double
