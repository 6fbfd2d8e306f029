// The checks that have nothing to do with a service that runs; doctor.cc puts all together.
#pragma once

#include "client/cli/ctl/findings.h"
#include "client/cli/ctl/patient.h"

namespace headrace::ctl {

// Cores, memory, files: what any process of the node lives on.
void ExamineMachine(const Patient& patient, Findings& findings);

// Networks and GPUs, and the libraries that reach them.
void ExamineDevices(const Patient& patient, Findings& findings);

}  // namespace headrace::ctl
