// Doctor's findings from its input: pure, so that every finding can be tested without a service.
#pragma once

#include <string>
#include <vector>

#include "client/cli/ctl/control.h"
#include "client/cli/ctl/diagnostic_input.h"
#include "client/cli/ctl/findings.h"

namespace headrace::ctl {

// Examines service and machine. Once it is known that the service does not answer, its other
// answers are left out.
Findings Examine(const DiagnosticInput& input);

// Explains an attempt to reach the service at that address.
Findings ExaminePeer(const std::string& address, const Result<std::vector<PeerStep>>& steps);

// What a line `key = "value"` of TOML says; empty where there is none, or the value is empty.
std::string TomlText(const std::string& toml, const std::string& key);

}  // namespace headrace::ctl
