// Converts errors of the library into those of the C header.
#pragma once

#include <new>

#include "client/include/headrace/headrace.h"
#include "ipc/base/result.h"

namespace headrace::client {

// Fills `error` (which may be null) from a failed status; returns the C status.
hr_status Report(const Status& status, hr_error* error);

// Runs a C function's body, which returns a Status. No exception of the standard library passes
// the C border: memory that ran out becomes HR_EXHAUSTED.
template <typename Body>
hr_status Guarded(hr_error* error, Body&& body) {
  try {
    const Status status = body();
    if (status.ok()) [[likely]]
      return HR_OK;
    return Report(status, error);
  } catch (const std::bad_alloc&) {
    return Report(Error(Code::kExhausted, "this process is out of memory"), error);
  } catch (const std::exception& exception) {
    return Report(Error(Code::kInternal, exception.what()), error);
  }
}

}  // namespace headrace::client
