// A span of time as people read it.
#pragma once

#include <string>

#include "ipc/base/clock.h"

namespace headrace {

// "0.2 ms", "35 ms", "4.1 s", "3m 12s", "5h 02m", "12d 04h". A time in the future is "0.0 ms".
std::string FormatAge(TimeNs age_ns);

}  // namespace headrace
