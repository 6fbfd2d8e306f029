// Options of the rpc actor, fixed at its start.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "ipc/base/clock.h"
#include "service/accounts/quotas.h"
#include "service/rpc/rendezvous.h"

namespace headrace::service {

// The program's exit code when CUDA wants another process.
inline constexpr int kExitGpuBroken = 3;

struct ControlOptions {
  std::string socket_path;
  std::uint32_t socket_mode = 0666;
  std::string version;        // "0.1.0"
  std::string config_text;    // the whole configuration, for the admin
  std::string reduce_target;  // of the SIMD reductions, for the board
  std::uint32_t operation_timeout_ms = 60'000;
  TimeNs drain_timeout_ns = 5 * kSecond;
  TimeNs late_ns = 5 * kSecond;  // after which a rank gets what its job waits for; 0: never
  std::uint32_t connections_max = 1024;
  QuotaLimits quotas{};
  std::uint64_t memory_found = 0;   // of which the default quota is three quarters; 0: it is not
  std::string memory_limited_by{};  // what says so; empty: the machine
  std::uint64_t operations_per_uid = 0;  // dispatch keeps to that; 0: no limit
  // Why no GPU memory is taken, and the remedy; empty: it is.
  std::string gpus_missing = "this service was started without GPUs";
  bool nccl_between_nodes = false;  // takes GPUs' memory, and not the host's lanes
  RendezvousRules rendezvous{};
  std::uint64_t descriptors_of_others = 0;  // that other event loops of the process may take
};

// Who started the service and wants to hear how far it is: systemd.
struct Supervisor {
  std::function<void(std::string_view)> notify;  // in systemd's words; empty: nobody
  TimeNs patience_ns = 0;          // between two times of WATCHDOG=1; 0: it does not wait for that
  std::function<void()> reload{};  // what SIGHUP has done, on control's thread; empty: nothing
};

}  // namespace headrace::service
