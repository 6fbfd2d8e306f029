// Everything that can be set for the service, and where it was set.
//
// A value comes from the first of these that names it: a flag, the environment (HEADRACE_*), the
// file given by --config, the default. An invalid value is refused with its name; nothing is
// ignored. config_keys.h has the table of keys that flags, environment and file share.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "ipc/base/architecture.h"
#include "ipc/base/policies.h"

namespace headrace::service {

// What has only a few values. Beside each enum stand the names of its values, in their order: what
// files, flags and the environment say.
enum class LogLevel : std::uint8_t { kTrace, kDebug, kInfo, kWarning, kError, kOff };
inline constexpr std::array<std::string_view, 6> kLogLevelNames = {"trace",   "debug", "info",
                                                                   "warning", "error", "off"};
enum class GpuUse : std::uint8_t { kAuto, kOn, kOff };
inline constexpr std::array<std::string_view, 3> kGpuUseNames = {"auto", "on", "off"};
enum class GpuLaneKind : std::uint8_t { kNvlink, kNccl };
inline constexpr std::array<std::string_view, 2> kGpuLaneKindNames = {"nvlink", "nccl"};
enum class GpuMulticast : std::uint8_t { kOn, kOff };
inline constexpr std::array<std::string_view, 2> kGpuMulticastNames = {"on", "off"};
enum class GpuNetwork : std::uint8_t { kStaged, kNccl };
inline constexpr std::array<std::string_view, 2> kGpuNetworkNames = {"staged", "nccl"};
enum class GpuCodecs : std::uint8_t { kOn, kOff };
inline constexpr std::array<std::string_view, 2> kGpuCodecsNames = {"on", "off"};
enum class Role : std::uint8_t { kNode, kServer };
inline constexpr std::array<std::string_view, 2> kRoleNames = {"node", "server"};
enum class NetworkAlgorithm : std::uint8_t {
  kAuto,
  kDirectExchange,
  kRecursiveDoubling,
  kDirectScatter,
  kRing
};
inline constexpr std::array<std::string_view, 5> kNetworkAlgorithmNames = {
    "auto", "direct-exchange", "recursive-doubling", "direct-scatter", "ring"};

constexpr std::string_view Name(GpuLaneKind lane) {
  return kGpuLaneKindNames[static_cast<std::size_t>(lane)];
}
constexpr std::string_view Name(LogLevel level) {
  return kLogLevelNames[static_cast<std::size_t>(level)];
}

// A quota that nobody set: the service's choice, by what the machine has.
inline constexpr std::uint64_t kQuotaAuto = UINT64_MAX;

struct Config {
  std::string socket_path = "/run/headrace/headrace.sock";
  std::uint64_t socket_mode = 0666;
  std::string board_path = "/run/headrace/board";
  std::uint64_t board_mode = 0644;
  std::uint64_t lane_threads = 0;          // 0: one per core
  std::uint64_t credit_bytes = 8U << 20U;  // in flight, per job and lane
  std::uint64_t spin_us = 0;               // that an idle data path looks for work before it sleeps
  std::uint64_t operation_timeout_ms = 60'000;
  std::uint64_t drain_timeout_ms = 5'000;
  bool dedicated_lanes = false;  // lanes on threads of their own instead of dispatch's
  LogLevel log_level = LogLevel::kInfo;
  std::uint64_t log_queue_bytes = std::uint64_t{1} << 20U;
  std::uint64_t late_ms = 5'000;  // an operation that waits longer is reported; 0: never
  bool interleave = false;        // hold an iteration back where two jobs' phases collide
  std::string http_address;       // "host:port" of metrics, health and status page; empty: none

  GpuUse gpu = GpuUse::kAuto;  // whether GPUs are used: when there are some, always, never
  std::string cuda_library;    // the driver, a file or the loader's name; empty: libcuda.so.1
  GpuLaneKind gpu_lane = GpuLaneKind::kNvlink;  // what carries blocks between a node's GPUs
  // With gpu_lane = nvlink: whether the switch between GPUs sums.
  GpuMulticast gpu_multicast = GpuMulticast::kOff;
  std::string nccl_library;  // with gpu_lane or gpu_network = nccl; empty: libnccl.so.2
  // How GPUs' memory goes to other nodes: through the host's, or by NCCL.
  GpuNetwork gpu_network = GpuNetwork::kStaged;
  // With gpu_network = staged: whether GPUs encode and decode what they have for other nodes.
  GpuCodecs gpu_codecs = GpuCodecs::kOn;
  std::uint64_t gpu_ctas = 16;  // of a GPU that one sum or move may take, in blocks of threads

  // What one uid may have at a time; 0: no limit. kQuotaAuto leaves root and the service's own user
  // without a limit.
  std::uint64_t sessions_per_uid = kQuotaAuto;
  std::uint64_t memory_per_uid = kQuotaAuto;  // bytes of segments
  std::uint64_t operations_per_uid = 0;       // posted and not ended, gradients too

  // Other nodes. Addresses are "host:port", as NormalAddress writes them (config_address.h).
  std::string node_name;     // never empty once read: the host's name when nobody gives one
  std::string node_address;  // where other services reach this one; empty: there are none
  std::uint64_t forming_ms = 60'000;  // for a job to gather its ranks and link its nodes
  std::uint64_t detection_ms = 3000;  // silence of a peer after which it counts as lost
  std::string peers;                  // "name=host:port,..."; empty: whoever has a certificate
  std::string tls_authority;          // these three: all or none
  std::string tls_certificate;
  std::string tls_key;
  bool plain_text = false;  // allow peers without TLS beyond loopback
  Role role = Role::kNode;
  // A server offers itself there; on a node it is its jobs' default. With peers never empty.
  std::string rendezvous;
  Architecture architecture = Architecture::kAllReduce;  // of jobs led here that do not say
  plan::Policy policy = plan::Policy::kAuto;  // likewise: how their gradients' plans are made
  std::uint64_t block_bytes = 4U << 20U;      // an operation of several nodes is cut into these
  std::uint64_t verify = 0;                   // of every so many iterations results are compared
  std::string rails;                          // network devices, a lane each; empty: one lane
  std::string network_transports;             // UCX_TLS; empty: ours
  std::uint64_t network_credit_bytes = 32U << 20U;  // in flight, per job and lane between nodes
  NetworkAlgorithm network_algorithm = NetworkAlgorithm::kAuto;

  // Who gave a value: "file /etc/headrace.toml:3", "env HEADRACE_SPIN_US", "flag --spin-us". A key
  // that is not in here has its default.
  std::map<std::string, std::string, std::less<>> sources;
};

}  // namespace headrace::service
