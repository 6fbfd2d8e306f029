// The input of doctor: facts of the service, its board and this machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/cli/ctl/control.h"
#include "client/cli/ctl/machine.h"
#include "client/cli/ctl/process.h"
#include "client/cli/ctl/snapshot.h"
#include "ipc/base/result.h"

namespace headrace::ctl {

struct DiagnosticInput {
  std::string board_path;
  std::string socket_path;
  Result<Snapshot> board;
  Liveness liveness = Liveness::kGone;
  Result<PingAnswer> ping;
  Result<ProbeAnswer> probe = Error(Code::kUnavailable, "not asked");
  Result<std::vector<PeerProbe>> peers = Error(Code::kUnavailable, "not asked");
  Result<std::string> configuration = Error(Code::kUnavailable, "not asked");  // TOML
  std::uint32_t protocol_version = 0;                                          // of this program
  Machine machine;
};

}  // namespace headrace::ctl
