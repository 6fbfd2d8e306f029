// Texts about how a rank that attaches to a job begins.
#pragma once

namespace headrace::service {

// After a reconnect, or from the start.
inline const char* DescribeStart(bool goes_on) { return goes_on ? "goes on" : "begins"; }

}  // namespace headrace::service
