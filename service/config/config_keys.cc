#include "service/config/config_keys.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <type_traits>
#include <utility>

#include "ipc/base/policies.h"

namespace headrace::service {
namespace {

using Kind = ConfigKey::Kind;

constexpr std::uint64_t kDayMs = 24ULL * 3600 * 1000;
// What a unix socket address holds (sun_path), less its NUL; the lock file beside it has no limit
// of this kind.
constexpr std::uint64_t kSocketPathMax = 107;
constexpr std::uint64_t kPathMax = 4095;

constexpr std::uint64_t kTransportsMax = 255;

// The choice of a member whose enum counts from 0.
template <auto kMember>
constexpr ConfigKey::Choice ChoiceOf(std::span<const std::string_view> names) {
  using Enum = std::remove_cvref_t<decltype(std::declval<Config>().*kMember)>;
  return {names,
          [](Config& config, std::size_t index) { config.*kMember = static_cast<Enum>(index); },
          [](const Config& config) { return static_cast<std::size_t>(config.*kMember); }};
}

// Policies have numbers of their own.
constexpr ConfigKey::Choice kPolicyChoice = {
    plan::kPolicyNames,
    [](Config& config, std::size_t index) { config.policy = plan::kPolicies[index]; },
    [](const Config& config) {
      const auto* found = std::find(plan::kPolicies.begin(), plan::kPolicies.end(), config.policy);
      return static_cast<std::size_t>(found - plan::kPolicies.begin());
    }};

constexpr std::array kKeys = {
    ConfigKey{"socket", Kind::kPath, &Config::socket_path, 1, kSocketPathMax,
              "unix socket that clients attach to"},
    ConfigKey{"socket_mode", Kind::kMode, &Config::socket_mode, 0, 0777,
              "permissions of the socket"},
    ConfigKey{"board", Kind::kPath, &Config::board_path, 1, kPathMax,
              "file that headracectl reads"},
    ConfigKey{"board_mode", Kind::kMode, &Config::board_mode, 0, 0777, "permissions of the board"},
    ConfigKey{"lane_threads", Kind::kInteger, &Config::lane_threads, 0, 1024,
              "threads that share one operation; 0: one per core"},
    ConfigKey{"credit_bytes", Kind::kInteger, &Config::credit_bytes, 4096, std::uint64_t{1} << 40U,
              "bytes in flight per job and lane"},
    ConfigKey{"spin_us", Kind::kInteger, &Config::spin_us, 0, 1'000'000,
              "microseconds that an idle data path looks for work before it sleeps"},
    ConfigKey{"operation_timeout_ms", Kind::kInteger, &Config::operation_timeout_ms, 1, kDayMs,
              "an operation that is open longer ends with an error"},
    ConfigKey{"drain_timeout_ms", Kind::kInteger, &Config::drain_timeout_ms, 0, kDayMs,
              "what is open that long after SIGTERM ends with an error"},
    ConfigKey{"dedicated_lanes", Kind::kSwitch, &Config::dedicated_lanes, 0, 0,
              "lanes on threads of their own instead of dispatch's"},
    ConfigKey{"log_level", Kind::kChoice, ChoiceOf<&Config::log_level>(kLogLevelNames), 0, 0,
              "least important message that is logged"},
    ConfigKey{
        "log_queue_bytes", Kind::kInteger, &Config::log_queue_bytes, 4096, std::uint64_t{1} << 30U,
        "bytes of log lines that wait while nobody reads them; beyond, the oldest are dropped"},
    ConfigKey{"late_ms", Kind::kInteger, &Config::late_ms, 0, kDayMs,
              "an operation that waits longer is reported by name; 0: never"},
    ConfigKey{"interleave", Kind::kSwitch, &Config::interleave, 0, 0,
              "hold an iteration back where the phases of two jobs collide on a lane"},
    ConfigKey{"http_address", Kind::kListen, &Config::http_address, 0, 0,
              "host:port of metrics, health and status page; \"\": none"},
    ConfigKey{"gpu", Kind::kChoice, ChoiceOf<&Config::gpu>(kGpuUseNames), 0, 0,
              "use GPUs: auto when there are some, on or not at all, off"},
    ConfigKey{"cuda_library", Kind::kLibrary, &Config::cuda_library, 0, kPathMax,
              "CUDA's driver, a file or a name that the loader finds; \"\": libcuda.so.1"},
    ConfigKey{"gpu_lane", Kind::kChoice, ChoiceOf<&Config::gpu_lane>(kGpuLaneKindNames), 0, 0,
              "what sums and moves between the GPUs of this node"},
    ConfigKey{
        "gpu_multicast", Kind::kChoice, ChoiceOf<&Config::gpu_multicast>(kGpuMulticastNames), 0, 0,
        "whether the switch between GPUs sums where it can (NVLS, lane nvlink), in an order of "
        "its own"},
    ConfigKey{"nccl_library", Kind::kLibrary, &Config::nccl_library, 0, kPathMax,
              "NCCL, a file or a name that the loader finds; \"\": libnccl.so.2; Python's package "
              "has it as nvidia/nccl/lib/libnccl.so.2"},
    ConfigKey{"gpu_network", Kind::kChoice, ChoiceOf<&Config::gpu_network>(kGpuNetworkNames), 0, 0,
              "how GPUs' memory goes to other nodes: staged through pinned host memory, or by nccl "
              "from each GPU"},
    ConfigKey{"gpu_ctas", Kind::kInteger, &Config::gpu_ctas, 1, 1024,
              "blocks of threads of a GPU that one sum or move may take"},
    ConfigKey{"sessions_per_uid", Kind::kQuota, &Config::sessions_per_uid, 0, 1'000'000,
              "sessions one uid may have open; 0: no limit; auto: as many sessions and jobs as it "
              "leaves free for others"},
    ConfigKey{
        "memory_per_uid", Kind::kQuota, &Config::memory_per_uid, 0, std::uint64_t{1} << 50U,
        "bytes of segments, of the host and of GPUs, one uid may hand over; 0: no limit; "
        "auto: three quarters of this machine's memory, or of what the service's control group "
        "may use"},
    ConfigKey{"operations_per_uid", Kind::kInteger, &Config::operations_per_uid, 0, 1'000'000'000,
              "operations and gradients one uid may have open; 0: no limit"},
    ConfigKey{"node_name", Kind::kName, &Config::node_name, 0, 0,
              "this node's name for other nodes; \"\": the host's name"},
    ConfigKey{"node_address", Kind::kListen, &Config::node_address, 0, 0,
              "host:port where other services reach this one; \"\": there are no other nodes"},
    ConfigKey{"forming_ms", Kind::kInteger, &Config::forming_ms, 1000, 86'400'000,
              "for a job to gather its ranks and link its nodes, or its first rank's timeout where "
              "that is longer"},
    ConfigKey{"detection_ms", Kind::kInteger, &Config::detection_ms, 200, 60'000,
              "silence of a peer after which it counts as lost"},
    ConfigKey{"peers", Kind::kPeers, &Config::peers, 0, 0,
              "the only services to speak with, name=host:port,...; \"\": all with a certificate"},
    ConfigKey{"tls_authority", Kind::kPath, &Config::tls_authority, 0, kPathMax,
              "certificate of the cluster's authority"},
    ConfigKey{"tls_certificate", Kind::kPath, &Config::tls_certificate, 0, kPathMax,
              "this node's certificate"},
    ConfigKey{"tls_key", Kind::kPath, &Config::tls_key, 0, kPathMax, "this node's private key"},
    ConfigKey{"plain_text", Kind::kSwitch, &Config::plain_text, 0, 0,
              "speak without TLS with other hosts too"},
    ConfigKey{"role", Kind::kChoice, ChoiceOf<&Config::role>(kRoleNames), 0, 0,
              "node: has ranks; server: sums for the jobs of other nodes"},
    ConfigKey{"rendezvous", Kind::kAddress, &Config::rendezvous, 0, 0,
              "where a server offers itself, and a node's jobs meet that name no place; "
              "\"\" with peers: the first of them"},
    ConfigKey{"architecture", Kind::kChoice, ChoiceOf<&Config::architecture>(kArchitectureNames), 0,
              0, "of jobs led here that name none"},
    ConfigKey{"policy", Kind::kChoice, kPolicyChoice, 0, 0,
              "how plans of gradients are made, of jobs led here that name none"},
    ConfigKey{"block_bytes", Kind::kInteger, &Config::block_bytes, 4096, std::uint64_t{1} << 30U,
              "size of the blocks that travel between nodes"},
    ConfigKey{"verify", Kind::kInteger, &Config::verify, 0, 1'000'000,
              "compare the results of every so many iterations or operations; 0: of none"},
    ConfigKey{
        "rails", Kind::kRails, &Config::rails, 0, 0,
        "network devices, one lane each, like eth0,eth1, which take the place of one that fails; "
        "\"\": one lane at node_address"},
    ConfigKey{"network_transports", Kind::kText, &Config::network_transports, 0, kTransportsMax,
              "UCX_TLS, the transports between nodes; \"\": the service's choice"},
    ConfigKey{"network_credit_bytes", Kind::kInteger, &Config::network_credit_bytes, 4096,
              std::uint64_t{1} << 40U, "bytes in flight per job and lane between nodes"},
    ConfigKey{"network_algorithm", Kind::kChoice,
              ChoiceOf<&Config::network_algorithm>(kNetworkAlgorithmNames), 0, 0,
              "how nodes sum a block; auto: by its size and the measured cost"},
};

}  // namespace

std::span<const ConfigKey> ConfigKeys() { return kKeys; }

const ConfigKey* FindConfigKey(std::string_view name) {
  const auto* found = std::find_if(kKeys.begin(), kKeys.end(),
                                   [name](const ConfigKey& key) { return key.name == name; });
  return found == kKeys.end() ? nullptr : found;
}

std::string EnvironmentName(const ConfigKey& key) {
  std::string name = "HEADRACE_";
  for (char letter : key.name) {
    name += static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  }
  return name;
}

std::string FlagName(const ConfigKey& key) {
  std::string name = "--" + std::string(key.name);
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

}  // namespace headrace::service
