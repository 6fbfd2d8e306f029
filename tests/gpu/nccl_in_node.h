// The lane over NCCL inside a node, on all GPUs that are there.
#pragma once

#include <string>

#include "transport/memory/gpus.h"

namespace headrace::gpu {

// What was wrong, or empty; prints what was shown. `library` is NCCL's.
std::string CheckInNode(const transport::Gpus& gpus, const std::string& library);

}  // namespace headrace::gpu
