// `headracectl flight`: options in, text and exit code out.
#pragma once

#include "client/cli/ctl/commands.h"

namespace headrace::ctl {

void AddFlightCommand(const Program& program);

}  // namespace headrace::ctl
