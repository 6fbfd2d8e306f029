// From a record, which is untrusted, to an operation that may be carried out.
#pragma once

#include <cstdint>

#include "ipc/base/result.h"
#include "ipc/records.h"
#include "service/dispatch/job/operation_spec.h"
#include "service/session/session.h"

namespace headrace::service {

inline constexpr std::uint32_t kTimeoutMsMax = 24 * 3600 * 1000;

// Checks every field against the session's segments and tensors. Errors are kInvalidArgument (the
// numbers make no sense) or kNotFound (no such tensor or segment) and name the field and its value.
Result<OperationSpec> CheckRecord(const ipc::Record& record, const Session& session);

// Who sends to whom in a record of a send or receive. Errors are kInvalidArgument.
Result<PairSides> CheckSides(const ipc::Record& record, const SessionIdentity& identity);

// The gradient's place in the session's layout. Errors as above.
Result<std::uint32_t> CheckGradient(const ipc::GradientRecord& record, const Session& session);

}  // namespace headrace::service
