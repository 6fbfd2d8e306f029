// Asking the service itself, over its socket. The only home of kj and RPC in this program.
#pragma once

#include <cstdint>
#include <string>

#include "ipc/base/clock.h"
#include "ipc/base/result.h"

namespace headrace::ctl {

// The protocol version this program speaks.
std::uint32_t ProtocolVersion();

// How long the service took, as it says, and as it looked from here.
struct PingAnswer {
  TimeNs control_ns = 0;
  TimeNs dispatch_ns = 0;
  TimeNs round_trip_ns = 0;
};

// Connects, says hello and asks for one round trip through control and dispatch. Takes at most
// `timeout_ns`: a service that is stopped or stuck gives kTimeout.
Result<PingAnswer> Ping(const std::string& socket_path, TimeNs timeout_ns);

// Asks for plans of the job by that policy from now on. The error is the service's own: no such
// job, no such policy, another user's job.
Status SetPolicy(const std::string& socket_path, const std::string& job, const std::string& policy,
                 TimeNs timeout_ns);

}  // namespace headrace::ctl
