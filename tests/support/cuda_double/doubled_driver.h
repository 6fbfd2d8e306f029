// The double, opened as the driver of a test.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/cuda_double/cuda_double.h"
#include "transport/memory/cuda_driver.h"

namespace headrace::cuda_double {

// Where the build put the library.
std::string LibraryPath();

// The variables of the double for as long as this lives.
class Environment {
 public:
  struct Variable {
    std::string name;  // without HEADRACE_CUDA_DOUBLE_
    std::string value;
  };
  Environment(std::initializer_list<Variable> variables);
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment();

 private:
  std::vector<std::string> names_;
};

// What the double offers beside a driver's functions.
struct Doubled {
  decltype(&headrace_cuda_double_counts) counts = nullptr;
  decltype(&headrace_cuda_double_restart) restart = nullptr;
  decltype(&headrace_cuda_double_fail) fail = nullptr;
  decltype(&headrace_cuda_double_break) breaks = nullptr;
  decltype(&headrace_cuda_double_kernel) kernel = nullptr;
  decltype(&headrace_cuda_double_may_touch) may_touch = nullptr;
  CudaDoubleLaunchEx launch_ex = nullptr;
};
Doubled LoadDouble();

// Lets the double read the environment again; nothing may be held.
Result<std::unique_ptr<transport::CudaDriver>> OpenDouble();

// All counts, for comparing; a leak shows which.
std::vector<std::uint64_t> CountsOf(const Doubled& doubled);

}  // namespace headrace::cuda_double
