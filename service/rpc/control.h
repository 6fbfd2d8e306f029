// The rpc actor: the socket, the leases and the signals, on the thread that builds and runs it.
//
// It accepts clients, answers their calls (attach, segments, tensors, leave, admin), keeps the
// roster of jobs and tells dispatch and peers what follows. It is never on the data path. A client
// costs at most its own connection: what it sends is bounded, paced, checked and refused, never
// trusted.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/result.h"
#include "ipc/board_layout.h"
#include "service/accounts/quotas.h"
#include "service/actor/inbox.h"
#include "service/actor/messages.h"
#include "service/loop/loop_inbox.h"
#include "service/rpc/rendezvous.h"

namespace spdlog {
class logger;
}

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
  TimeNs late_ns = 5 * kSecond;  // after which a rank is told what its job waits for; 0: never
  std::uint32_t connections_max = 1024;
  QuotaLimits quotas{};
  std::uint64_t memory_found = 0;   // of which the default quota is three quarters; 0: it is not
  std::string memory_limited_by{};  // what says so; empty: the machine
  std::uint64_t operations_per_uid = 0;  // dispatch keeps to that; 0: no limit
  // Why no GPU memory is taken, and the remedy; empty: it is.
  std::string gpus_missing = "this service was started without GPUs";
  RendezvousRules rendezvous{};
  std::uint64_t descriptors_of_others = 0;  // that other event loops of the process may take
};

// Who started the service and wants to hear how far it is: systemd.
struct Supervisor {
  std::function<void(std::string_view)> tell;  // in systemd's words; empty: nobody
  TimeNs patience_ns = 0;          // between two times of WATCHDOG=1; 0: it does not wait for that
  std::function<void()> reload{};  // what SIGHUP has done, on control's thread; empty: nothing
};

// What control speaks to; all outlive it.
struct ControlPorts {
  LoopInbox<RpcMessage>& inbox;
  Door<DispatchMessage>& dispatch;
  Door<PeersMessage>& peers;
  Door<WatchMessage>& watch;
  Door<MappingMessage>& mapping;
  ipc::BoardSlot<ipc::ServiceRow>& board;
  spdlog::logger& log;
  std::vector<std::string> lane_names{};            // of all lanes, by their numbers
  Door<HttpMessage>* http = nullptr;                // null: nobody asks over HTTP
  std::span<ipc::BoardSlot<ipc::UserRow>> users{};  // empty: nobody looks at them
};

class Control {
 public:
  // Binds the socket and listens; whoever calls this holds the socket path (see instance.h) and
  // runs on the thread that will call Run. Blocks SIGTERM, SIGINT, SIGHUP and SIGPIPE in this
  // thread and in the threads it starts later, so call it, or block them, before starting any.
  static Result<std::unique_ptr<Control>> Create(ControlOptions options, ControlPorts ports);
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  // Serves until SIGTERM, SIGINT or a person's drain, which waits for jobs first; then ends: no new
  // attach, open operations end within the drain timeout, all leases end. Returns the exit code: 0
  // drained, 1 when a second signal or the drain timeout plus one second cut it short,
  // kExitGpuBroken when a GPU's context broke, which ends it like a signal.
  int Run(Supervisor supervisor = {});

 private:
  class Loop;  // everything that needs the event loop's headers
  explicit Control(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace headrace::service
