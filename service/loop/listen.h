// Opens a TCP port of the service.
#pragma once

#include <kj/async-io.h>
#include <kj/async.h>

#include <string>
#include <string_view>

#include "ipc/base/result.h"

namespace headrace::service {

// Listens at "host:port", which the configuration gives as `key`. Errors (kUnavailable, and kBusy
// where another program listens there) say why not and what to set.
Result<kj::Own<kj::ConnectionReceiver>> ListenAt(kj::AsyncIoContext& io, std::string_view key,
                                                 const std::string& address);

// Whether a service could listen there; the port is free again afterwards. Not on a thread that has
// an event loop.
Status CheckListenAt(std::string_view key, const std::string& address);

}  // namespace headrace::service
