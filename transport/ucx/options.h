// The options of a UCX wire, and their translation to UCX's configuration.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ipc/base/result.h"
#include "transport/ucx/handles.h"

namespace headrace::transport {

// The kernel asks an idle machine for a sign of life: after so many seconds, so many times.
inline constexpr int kKeepaliveSeconds = 1;
inline constexpr int kKeepaliveCount = 3;

struct UcxOptions {
  // UCX_NET_DEVICES: "eth0", "mlx5_0:1,mlx5_1:1", "lo". Empty: UCX chooses among all.
  std::string net_devices;
  // UCX_TLS. Shared memory stays out: traffic inside a node is not UCX's business, and it cannot
  // tell of a dead peer.
  std::string transports = "^sm,self,cma";
  // Messages of this size and more are announced first and sent when the receiver has chosen the
  // memory; smaller ones go at once and wait there in a copy. Between two network namespaces 64 KiB
  // took 72 us at once and 209 us announced, 128 KiB 104 and 207; larger ones would fill a receiver
  // that is late.
  std::size_t rendezvous_bytes = 128 << 10;
  // UCX_LOG_LEVEL, for the whole process: what matters of UCX's words is in this wire's errors.
  std::string log_level = "fatal";
  // The wire's end leaves UCX's engine and context to the end of the process. For a process that
  // has its wires until then: UCX 1.13 aborts when an engine is destroyed while it answers a peer
  // that has just connected (ucp_request.c: "got REP message"), which neither this end nor closing
  // endpoints can prevent, since UCX makes such endpoints by itself and the answer waits for the
  // peer. Other wires hear of the end with that of the process.
  bool leave_at_end = false;
  // A TCP connection fails when the other end's kernel has acknowledged nothing of what was sent
  // for so long; 0: as the kernel has it, which is minutes. For wires that have others beside them.
  int unacknowledged_ms = 0;
  // Further UCX settings without their "UCX_", after ours: {"TCP_PORT_RANGE", "21000-21999"}.
  std::vector<std::pair<std::string, std::string>> settings;
};

// UCX's defaults and environment, then what suits this service, then the options. The environment
// is only read.
Result<UcxConfig> MakeUcxConfig(const UcxOptions& options);

// Over all that two ends must have alike: TCP's segments end UCX when the sizes differ.
std::uint64_t SettingsSum(const UcxOptions& options);

}  // namespace headrace::transport
