// Texts about the memory through which GPUs' blocks reach other nodes.
//
// Dispatch's thread.
#pragma once

#include <optional>

#include "service/dispatch/job/job.h"
#include "service/dispatch/messages.h"

namespace headrace::service {

// Describes how the scratch that was made differs from what was wanted. Leaves out GPUs that have
// theirs as wanted, for which GPU 0 speaks.
std::optional<Failure> DescribeScratch(const Job& job, const ScratchMade& message);

}  // namespace headrace::service
