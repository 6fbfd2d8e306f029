// The environment variables that CUDA's driver and NCCL read by themselves, and the values that
// they need.
#pragma once

#include <map>
#include <string>

#include "ipc/base/result.h"
#include "service/config/invocation.h"

namespace headrace::service {

// Variables to set before the driver is loaded and before there is a second thread, by name. A
// value that somebody gave and that does not go with the configuration is refused by name, with
// what to do. What is not refused is set all the same where NCCL would else take it from a file
// (nccl.conf). Empty where no GPU is used.
Result<std::map<std::string, std::string>> GpuEnvironment(const Config& config,
                                                          const Environment& environment);

}  // namespace headrace::service
