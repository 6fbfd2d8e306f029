// Where the ranks of one id meet: in the process that made it.
#pragma once

#include <string>

#include "transport/nccl/nccl_abi.h"

namespace headrace::nccl_double {

// Starts a hub on a thread of its own, which ends when all ranks that came have gone.
transport::NcclResult StartHub(transport::NcclId& id);
// The name of its socket.
std::string NameOf(const transport::NcclId& id);

}  // namespace headrace::nccl_double
