// Descriptors that clients pass as capabilities. The rpc thread only.
#pragma once

#include <kj/async.h>

#include <string>
#include <vector>

#include "ipc/base/fd.h"
#include "ipc/base/result.h"
#include "ipc/schema/client.capnp.h"

namespace headrace::service {

// A copy of the descriptor; `what` names it in errors.
kj::Promise<Result<UniqueFd>> CopyDescriptor(schema::Descriptor::Client descriptor,
                                             std::string what);

// Copies of all pieces of GPU memory, in order.
kj::Promise<Result<std::vector<UniqueFd>>> CopyDescriptors(
    capnp::List<schema::Descriptor>::Reader pieces);

}  // namespace headrace::service
