#include "client/cli/ctl/probe_verdict.h"

#include <fmt/format.h>

#include "client/cli/ctl/table.h"
#include "client/cli/ctl/units.h"
#include "ipc/base/age.h"
#include "ipc/base/foreign_text.h"

namespace headrace::ctl {

ProbeVerdict JudgeProbe(const Result<ProbeAnswer>& probe) {
  if (!probe) return {false, "problem: " + Printable(probe.error().text())};
  for (const PartProbe& part : probe->parts) {
    if (!part.answered) return {false, "problem: " + Printable(part.name) + " does not answer"};
  }
  if (probe->dispatch_ns < 0) return {false, "problem: dispatch does not answer"};
  for (const LaneProbe& lane : probe->lanes) {
    if (!lane.answered) {
      return {false, fmt::format("problem: lane {} does not answer", Printable(lane.name))};
    }
    if (!lane.status.ok()) {
      return {false, fmt::format("problem: lane {}: {}", Printable(lane.name),
                                 Printable(lane.status.error().text()))};
    }
  }
  return {true, fmt::format("ok: dispatch answers within {}, and all of {} lanes",
                            FormatAge(probe->dispatch_ns), probe->lanes.size())};
}

}  // namespace headrace::ctl
