// The control actor: the socket, the leases and the signals, on the thread that builds and runs it.
//
// It accepts clients, answers their calls (attach, segments, tensors, leave, admin), keeps the
// roster of jobs and tells dispatch what follows. It is never on the data path. A client costs at
// most its own connection: what it sends is bounded, checked and refused, never trusted.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/result.h"
#include "ipc/board_layout.h"
#include "service/actor/inbox.h"
#include "service/actor/messages.h"
#include "service/control/control_inbox.h"
#include "service/control/quotas.h"
#include "service/plan/plan.h"
#include "transport/network.h"

namespace spdlog {
class logger;
}

namespace headrace::service {

// What other services may know and do.
struct PeerOptions {
  std::string node_name;
  std::string address;     // "host:port" where other services reach this one; empty: nowhere
  bool server = false;     // no ranks of jobs of several nodes, but a share of their sums
  std::string rendezvous;  // of a server: whom it serves; else of jobs whose ranks name none
  TimeNs detection_ns = 3 * kSecond;         // silence of a peer after which it counts as lost
  std::map<std::string, std::string> peers;  // the only ones, and their addresses; empty: all
  std::string architecture = "all-reduce";   // of jobs led here that name none
  std::uint64_t block_bytes = 4U << 20U;
  transport::Algorithm algorithm = transport::Algorithm::kAuto;
  std::uint32_t gpu_lanes = 0;  // of the lanes between nodes, that carry GPUs' memory by themselves
  // See tls.h.
  std::string tls_authority;
  std::string tls_certificate;
  std::string tls_key;
  bool plain_text = false;
};

struct ControlOptions {
  std::string socket_path;
  std::uint32_t socket_mode = 0666;
  std::string version;        // "0.1.0"
  std::string config_text;    // the whole configuration, for the admin
  std::string reduce_target;  // of the SIMD reductions, for the board
  std::uint32_t operation_timeout_ms = 60'000;
  TimeNs drain_timeout_ns = 5 * kSecond;
  std::uint32_t connections_max = 1024;
  plan::Policy policy = plan::Policy::kExact;  // of jobs led here whose ranks name none
  QuotaLimits quotas{};
  // Why no GPU memory is taken, and the remedy; empty: it is.
  std::string gpus_missing = "this service was started without GPUs";
  PeerOptions peers;
  std::string http_address;  // of metrics, health and status page; empty: nowhere
};

// Who started the service and wants to hear how far it is: systemd.
struct Supervisor {
  std::function<void(std::string_view)> tell;  // in systemd's words; empty: nobody
  TimeNs patience_ns = 0;  // between two times of WATCHDOG=1; 0: it does not wait for that
};

// A lane between nodes, as control sees it.
struct NetworkLane {
  std::uint8_t number = 0;  // as its messages say
  std::string address;      // how lanes of other nodes reach it; opaque bytes
  Door<LaneMessage>* door = nullptr;
};

// What control speaks to; all outlive it.
struct ControlPorts {
  ControlInbox& inbox;
  Door<DispatchMessage>& dispatch;
  Door<WatchMessage>& watch;
  ipc::BoardSlot<ipc::ServiceRow>& board;
  spdlog::logger& log;
  std::vector<NetworkLane> network_lanes{};  // in the same order on every node
  std::vector<std::string> lane_names{};     // of all lanes, by their numbers
  // What is shown over HTTP; null where options name no address for it.
  const ipc::BoardLayout* whole_board = nullptr;
  std::uint64_t hash_salt = 0;  // for tests: makes this node disagree with its leader
};

class Control {
 public:
  // Binds the socket and listens; whoever calls this holds the socket path (see instance.h) and
  // runs on the thread that will call Run. Blocks SIGTERM, SIGINT and SIGPIPE in this thread and in
  // the threads it starts later, so call it, or block them, before starting any.
  static Result<std::unique_ptr<Control>> Create(ControlOptions options, ControlPorts ports);
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  // The TCP port that other services reach; 0: none.
  unsigned peer_port() const;

  // Serves until SIGTERM or SIGINT, then drains: no new attach, open operations end within the
  // drain timeout, all leases end. Returns the exit code: 0 drained, 1 when a second signal or the
  // drain timeout plus one second cut it short.
  int Run(Supervisor supervisor = {});

 private:
  class Loop;  // everything that needs the event loop's headers
  explicit Control(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace headrace::service
