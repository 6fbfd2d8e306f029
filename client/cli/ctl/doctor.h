// What doctor makes of what it saw: pure, so that every finding can be tested without a service.
#pragma once

#include <optional>

#include "client/cli/ctl/control.h"
#include "client/cli/ctl/findings.h"
#include "client/cli/ctl/machine.h"
#include "client/cli/ctl/process.h"
#include "client/cli/ctl/snapshot.h"

namespace headrace::ctl {

struct Patient {
  std::string board_path;
  std::string socket_path;
  Result<Snapshot> board;
  Liveness liveness = Liveness::kGone;
  Result<PingAnswer> ping;
  std::uint32_t protocol_version = 0;  // of this program
  Machine machine;
};

Findings Examine(const Patient& patient);

}  // namespace headrace::ctl
