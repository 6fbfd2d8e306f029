#include "tests/support/nccl_double/doubled_nccl.h"

#include <dlfcn.h>

#include <type_traits>

#include "ipc/base/check.h"
#include "transport/memory/cuda_driver.h"

namespace headrace::nccl_double {

std::string LibraryPath() { return HEADRACE_NCCL_DOUBLE_LIBRARY; }

DoubledNccl LoadDouble() {
  void* library = ::dlopen(LibraryPath().c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  HR_CHECK(library != nullptr, ::dlerror());
  const transport::Library closes(library);
  DoubledNccl doubled;
  const auto find = [&](auto& function, const char* name) {
    void* symbol = ::dlsym(library, name);
    HR_CHECK(symbol != nullptr, name);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
  };
  find(doubled.counts, "headrace_nccl_double_counts");
  find(doubled.fail, "headrace_nccl_double_fail");
  find(doubled.hold_aborts, "headrace_nccl_double_hold_aborts");
  find(doubled.hold_inits, "headrace_nccl_double_hold_inits");
  return doubled;
}

}  // namespace headrace::nccl_double
