// Asking the service itself, over its socket. The only home of kj and RPC in this program.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/result.h"
#include "ipc/base/steering.h"

namespace headrace::ctl {

// The protocol version this program speaks.
std::uint32_t ProtocolVersion();

// How long the service took, as it says, and as it looked from here.
struct PingAnswer {
  TimeNs dispatch_ns = 0;
  TimeNs round_trip_ns = 0;
};

// Connects, says hello and asks for one round trip through control and dispatch. Takes at most
// `timeout_ns`: a service that is stopped or stuck gives kTimeout.
Result<PingAnswer> Ping(const std::string& socket_path, TimeNs timeout_ns);

// The whole configuration that the service runs with, as TOML.
Result<std::string> Configuration(const std::string& socket_path, TimeNs timeout_ns);

// A job as a person names it.
struct JobReference {
  std::string name;
  std::optional<std::uint32_t> owner;  // none: only one that the caller may change has that name
};

// Asks for plans of the job by that policy from now on. The error is the service's own: no such
// job, several of that name, no such policy, another user's job.
Status SetPolicy(const std::string& socket_path, const JobReference& job, const std::string& policy,
                 TimeNs timeout_ns);

// Asks every node of the job for something (ipc/base/steering.h says what values mean). That it was
// passed on, or the service's own error: no such job, another user's job, a value out of range.
Status Steer(const std::string& socket_path, const JobReference& job, SteeringKind kind,
             std::uint64_t value, TimeNs timeout_ns, bool forced = false);

// A way through the data path and back, without a side effect.
struct LaneProbe {
  std::string name;
  bool answered = false;  // within a second
  TimeNs ns = -1;         // until it had answered; -1: it has not
  Status status{};        // that it answered with
};
struct PartProbe {
  std::string name;       // of a thread that clients depend on: "peers", "watch"
  bool answered = false;  // within a second
  TimeNs ns = -1;         // until it had answered; -1: it has not
};
struct ProbeAnswer {
  TimeNs dispatch_ns = -1;  // -1: it did not answer within a second
  std::vector<LaneProbe> lanes;
  std::vector<PartProbe> parts{};
};
Result<ProbeAnswer> Probe(const std::string& socket_path, TimeNs timeout_ns);

// A service of another node that is connected, that a job waits for or that the list of peers
// names.
struct PeerProbe {
  std::string name;  // empty while it has not said it
  std::string address;
  bool leads = false;  // it leads jobs that have ranks here; else it takes part in ours
  bool connected = false;
  std::string why;                   // it is not connected; empty: no job needs it now
  bool refused = false;              // because one of the two would not have the other
  TimeNs round_trip_ns = -1;         // the best of the last few; -1: none yet
  std::int64_t clock_offset_ns = 0;  // its clock less this node's, within half of the round trip
};
// A drain of the whole service has begun.
struct DrainBegun {
  std::int32_t pid = 0;              // of the service
  std::uint32_t sessions = 0;        // that are open
  std::vector<std::string> waits{};  // the jobs that cannot reconnect
};
// Has the service move its jobs over to the next one, and end, at the latest after `deadline_ns`.
Result<DrainBegun> DrainService(const std::string& socket_path, TimeNs deadline_ns,
                                TimeNs timeout_ns);
Result<std::vector<PeerProbe>> Peers(const std::string& socket_path, TimeNs timeout_ns);

// How far the service got at another one's address, up to the first step that failed.
struct PeerStep {
  std::string name;   // "name", "port", "handshake", "version"
  std::string found;  // of a step that went well
  Status status{};
};
Result<std::vector<PeerStep>> TryPeer(const std::string& socket_path, const std::string& address,
                                      TimeNs timeout_ns);

}  // namespace headrace::ctl
