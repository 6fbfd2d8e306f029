// `headracectl trace`: options in, a file and an exit code out.
#pragma once

#include "client/cli/ctl/commands.h"

namespace headrace::ctl {

void AddTraceCommand(const Program& program);

}  // namespace headrace::ctl
