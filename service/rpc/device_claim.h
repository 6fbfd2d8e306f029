// What a client says of GPU memory that it hands over: read from its message and checked as far as
// that goes without the driver, which the mapper asks. The rpc thread only.
#pragma once

#include <cstddef>
#include <string>

#include "ipc/base/device_handle.h"
#include "ipc/base/result.h"
#include "ipc/schema/client.capnp.h"

namespace headrace::service {

// `gpus_missing` says why this service takes no GPU memory, and the remedy; empty: it does. Errors
// name the field and its value.
Result<DeviceHandle> ReadDeviceClaim(schema::DeviceHandle::Reader claim, std::size_t pieces_count,
                                     const std::string& gpus_missing);

}  // namespace headrace::service
