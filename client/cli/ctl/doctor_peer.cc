// What an attempt to reach another node's service showed.
#include <fmt/format.h>

#include <string_view>

#include "client/cli/ctl/doctor.h"

namespace headrace::ctl {
namespace {

// In the order in which the service takes them.
struct Step {
  std::string_view name;
  const char* check;
  const char* remedy;  // where it fails
};
constexpr Step kSteps[] = {
    {"name", "peer name", "give that name an address in DNS or /etc/hosts, or use an address"},
    {"port", "peer port",
     "see that headraced runs there with node_address at that port, and that no firewall is "
     "between"},
    {"handshake", "peer certificates",
     "both nodes need a certificate of the same authority: `headracectl certs show` says what a "
     "file holds"},
    {"version", "peer version", "install the same release on both nodes"},
};

}  // namespace

Findings ExaminePeer(const std::string& address, const Result<std::vector<PeerStep>>& steps) {
  if (!steps) {
    return {{"peer", Level::kProblem, steps.error().text(),
             "this node's own service makes the attempt: headracectl doctor says how it is"}};
  }
  Findings findings;
  for (const PeerStep& step : *steps) {
    for (const Step& known : kSteps) {
      if (known.name != step.name) continue;
      if (step.status.ok()) {
        findings.push_back(
            {known.check, Level::kOk, fmt::format("{} {}", address, step.found), ""});
      } else {
        findings.push_back({known.check, Level::kProblem,
                            fmt::format("{}: {}", address, step.status.error().text()),
                            known.remedy});
      }
    }
  }
  return findings;
}

}  // namespace headrace::ctl
