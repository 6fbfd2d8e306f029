// Checks the values of a configuration together, and the files that it names.
#pragma once

#include "ipc/base/result.h"
#include "service/config/config.h"

namespace headrace::service {

// Errors name the keys that contradict each other, or the file, and what to change. Reads the TLS
// files' state but not what is in them: whoever uses them does that.
Status CheckConfig(const Config& config);

}  // namespace headrace::service
