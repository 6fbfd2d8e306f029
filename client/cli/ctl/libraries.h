// Which vendors' libraries this machine has: opened at run time, asked for their version, closed.
#pragma once

#include "client/cli/ctl/machine.h"

namespace headrace::ctl {

// Fills what `machine` says of UCX, of CUDA's driver and its devices, and of NCCL.
void LookForLibraries(Machine& machine);

}  // namespace headrace::ctl
