// From a parts table in a client's memory, which is untrusted, to rows that may be carried out.
#pragma once

#include <span>

#include "ipc/base/result.h"
#include "ipc/records.h"
#include "service/dispatch/job/operation_spec.h"
#include "service/session/session.h"

namespace headrace::service {

// Copies the table of a record, of which CheckRecord has made `spec`, to `rows`, one for each rank
// of the job, and checks every field. Says in `spec` whether parts differ in size, and where the
// result goes. Errors are kInvalidArgument (the numbers make no sense) or kNotFound (no such
// segment) and name the row, the field and its value.
Status CheckParts(const ipc::Record& record, const Session& session, OperationSpec& spec,
                  std::span<ipc::PartRow> rows);

}  // namespace headrace::service
