// The checks that need no running service; doctor.cc combines all checks.
#pragma once

#include "client/cli/ctl/diagnostic_input.h"
#include "client/cli/ctl/findings.h"

namespace headrace::ctl {

// Cores, memory, files: what any process of the node lives on.
void ExamineMachine(const DiagnosticInput& input, Findings& findings);

// Networks and GPUs, and the libraries that reach them.
void ExamineDevices(const DiagnosticInput& input, Findings& findings);

}  // namespace headrace::ctl
