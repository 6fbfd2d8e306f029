// The answer of a probe, a round trip through the service: see Probe (service/rpc).
#pragma once

#include <string>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/result.h"

namespace headrace::service {

inline constexpr TimeNs kProbeTimeout = kSecond;

struct LaneAnswer {
  std::string name;
  bool answered = false;  // within kProbeTimeout
  TimeNs ns = -1;         // until it had answered
  Status status{};        // that it answered with
};

// A thread that clients depend on: "peers", "watch".
struct PartAnswer {
  std::string name;
  bool answered = false;  // within kProbeTimeout
  TimeNs ns = -1;         // until it had answered
};

struct ProbeAnswer {
  TimeNs dispatch_ns = -1;  // -1: it did not answer within kProbeTimeout
  std::vector<LaneAnswer> lanes;
  // The others. Where rpc itself does not answer it is the only one, and nothing else is known.
  std::vector<PartAnswer> parts{};

  // Nothing when all have answered well; else who has not: "lane ucx0 did not answer within 1 s".
  std::string Complaint() const;
};

}  // namespace headrace::service
