// Options of the peers actor, fixed at its start, and its ports.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "ipc/base/architecture.h"
#include "ipc/base/clock.h"
#include "ipc/board.h"
#include "service/actor/inbox.h"
#include "service/dispatch/messages.h"
#include "service/lane/messages.h"
#include "service/loop/loop_inbox.h"
#include "service/peers/messages.h"
#include "service/peers/tls_options.h"
#include "service/plan/plan.h"
#include "service/rpc/messages.h"
#include "service/watch/messages.h"
#include "transport/exchange/served_residuals.h"
#include "transport/network.h"

namespace spdlog {
class logger;
}

namespace headrace::service {

// What other services may know and do.
struct PeerOptions {
  std::string version;  // of this program
  std::string node_name;
  std::string address;  // "host:port" where other services reach this one; empty: nowhere
  std::vector<std::string> rails{};  // devices at whose addresses it is reached, too
  bool server = false;               // no ranks of jobs of several nodes, but a share of their sums
  std::string rendezvous;  // of a server: whom it serves; else of jobs whose ranks name none
  TimeNs detection_ns = 3 * kSecond;         // silence of a peer after which it counts as lost
  std::map<std::string, std::string> peers;  // the only ones, and their addresses; empty: all
  Architecture architecture = Architecture::kAllReduce;  // of jobs led here that name none
  plan::Policy policy = plan::Policy::kAuto;             // of jobs led here whose ranks name none
  std::uint64_t block_bytes = 4U << 20U;
  std::uint32_t verify = 0;  // of jobs led here: JobNodes::verify
  transport::Algorithm algorithm = transport::Algorithm::kAuto;
  // Lanes between nodes that carry GPUs' memory by themselves.
  std::uint32_t nccl_lanes = 0;
  // How long a job may gather its ranks and link its nodes; its first rank's timeout counts where
  // it is longer.
  TimeNs forming_ns = 60 * kSecond;
  // See tls.h.
  std::string tls_authority;
  std::string tls_certificate;
  std::string tls_key;
  bool plain_text = false;
};

PeerSecurityOptions SecurityOptionsOf(const PeerOptions& options);

// A lane between nodes, as peers sees it.
struct NetworkLane {
  std::uint8_t number = 0;  // as its messages say
  std::string address;      // how lanes of other nodes reach it; opaque bytes
  InboxWriter<LaneMessage>* inbox = nullptr;
};

// What peers speaks to; all outlive it.
struct PeersPorts {
  LoopInbox<PeersMessage>& inbox;
  InboxWriter<RpcMessage>& rpc;
  InboxWriter<DispatchMessage>& dispatch;
  InboxWriter<WatchMessage>& watch;
  spdlog::logger& log;
  ipc::BoardSlot<ipc::CertificateRow>* certificate = nullptr;  // null: nobody looks at it
  std::span<ipc::BoardSlot<ipc::PeerRow>> peers{};             // empty: likewise
  std::span<ipc::BoardSlot<ipc::ServedRow>> served{};          // likewise
  const transport::ServedResiduals* served_residuals =
      nullptr;                               // of the lanes; null: there is none
  std::vector<NetworkLane> network_lanes{};  // in the same order on every node
  std::uint64_t hash_salt = 0;               // for tests: makes this node disagree with its leader
};

}  // namespace headrace::service
