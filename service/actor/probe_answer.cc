#include "service/actor/probe_answer.h"

#include <fmt/format.h>

namespace headrace::service {

std::string ProbeAnswer::Complaint() const {
  const auto silent = [](const std::string& who) {
    return fmt::format("{} did not answer within {} s", who,
                       static_cast<double>(kProbeTimeout) / kSecond);
  };
  for (const PartAnswer& part : parts) {
    if (!part.answered) return silent(part.name);
  }
  if (dispatch_ns < 0) return silent("dispatch");
  for (const LaneAnswer& lane : lanes) {
    if (!lane.answered) return silent("lane " + lane.name);
    if (!lane.status) return fmt::format("lane {}: {}", lane.name, lane.status.error().text());
  }
  return {};
}

}  // namespace headrace::service
