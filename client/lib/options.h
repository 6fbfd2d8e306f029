// What a session is opened with, and where it comes from.
#pragma once

#include <functional>
#include <string>

#include "client/include/headrace/headrace.h"
#include "ipc/base/result.h"

namespace headrace::client {

// The value of an environment variable, or null. The real one is getenv.
using Environment = std::function<const char*(const char* name)>;

// Defaults, then the environment. The error names every variable that does not hold what it
// should; those fields keep their defaults.
Status FillOptions(const Environment& environment, hr_options& options);

// What hr_open needs before it asks the service; each error names the field and how to give it.
Status CheckOptions(const hr_options& options);

}  // namespace headrace::client
