// What `doctor --probe` says. Pure.
#pragma once

#include <string>

#include "client/cli/ctl/control.h"

namespace headrace::ctl {

struct ProbeVerdict {
  bool is_well = false;
  std::string text;  // one line
};

ProbeVerdict JudgeProbe(const Result<ProbeAnswer>& probe);

}  // namespace headrace::ctl
