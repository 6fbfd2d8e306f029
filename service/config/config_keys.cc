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
              "Unix socket that clients connect to"},
    ConfigKey{"socket_mode", Kind::kMode, &Config::socket_mode, 0, 0777,
              "permissions of the socket"},
    ConfigKey{"board", Kind::kPath, &Config::board_path, 1, kPathMax,
              "status file that headracectl reads"},
    ConfigKey{"board_mode", Kind::kMode, &Config::board_mode, 0, 0777,
              "permissions of the status file"},
    ConfigKey{"lane_threads", Kind::kInteger, &Config::lane_threads, 0, 1024,
              "threads that sum one operation together; 0: one per core"},
    ConfigKey{"credit_bytes", Kind::kInteger, &Config::credit_bytes, 4096, std::uint64_t{1} << 40U,
              "bytes that one job may have in flight on one lane inside the node"},
    ConfigKey{"spin_us", Kind::kInteger, &Config::spin_us, 0, 1'000'000,
              "microseconds that an idle data path polls before it sleeps"},
    ConfigKey{"operation_timeout_ms", Kind::kInteger, &Config::operation_timeout_ms, 1, kDayMs,
              "timeout of an operation that names none; after it the operation fails"},
    ConfigKey{"drain_timeout_ms", Kind::kInteger, &Config::drain_timeout_ms, 0, kDayMs,
              "time that open operations have to end after SIGTERM; then they fail"},
    ConfigKey{"dedicated_lanes", Kind::kSwitch, &Config::dedicated_lanes, 0, 0,
              "run each lane on a thread of its own instead of the dispatch thread"},
    ConfigKey{"log_level", Kind::kChoice, ChoiceOf<&Config::log_level>(kLogLevelNames), 0, 0,
              "least severe message that is logged"},
    ConfigKey{
        "log_queue_bytes", Kind::kInteger, &Config::log_queue_bytes, 4096, std::uint64_t{1} << 30U,
        "bytes of log lines kept while the log's reader is slow; beyond, the oldest are dropped"},
    ConfigKey{"late_ms", Kind::kInteger, &Config::late_ms, 0, kDayMs,
              "log an operation that waits longer, with the ranks that it waits for; 0: never"},
    ConfigKey{
        "interleave", Kind::kSwitch, &Config::interleave, 0, 0,
        "delay a job's iteration where two jobs would communicate on one lane at the same time"},
    ConfigKey{"http_address", Kind::kListen, &Config::http_address, 0, 0,
              "host:port that serves metrics, health and the status page; \"\": off"},
    ConfigKey{"gpu", Kind::kChoice, ChoiceOf<&Config::gpu>(kGpuUseNames), 0, 0,
              "auto: use GPUs if present; on: fail to start without them; off: never"},
    ConfigKey{"cuda_library", Kind::kLibrary, &Config::cuda_library, 0, kPathMax,
              "CUDA driver library, as a path or a name that the loader finds; \"\": libcuda.so.1"},
    ConfigKey{"gpu_lane", Kind::kChoice, ChoiceOf<&Config::gpu_lane>(kGpuLaneKindNames), 0, 0,
              "transport between the GPUs of this node"},
    ConfigKey{"gpu_multicast", Kind::kChoice, ChoiceOf<&Config::gpu_multicast>(kGpuMulticastNames),
              0, 0,
              "sum in the NVLink switch where it can (NVLS, lane nvlink); the switch chooses the "
              "order of "
              "summation"},
    ConfigKey{
        "nccl_library", Kind::kLibrary, &Config::nccl_library, 0, kPathMax,
        "NCCL library, as a path or a name that the loader finds; \"\": libnccl.so.2; the Python "
        "package has it at nvidia/nccl/lib/libnccl.so.2"},
    ConfigKey{
        "gpu_network", Kind::kChoice, ChoiceOf<&Config::gpu_network>(kGpuNetworkNames), 0, 0,
        "way of GPU memory to other nodes; staged: through pinned host memory; nccl: from each "
        "GPU by NCCL"},
    ConfigKey{"gpu_codecs", Kind::kChoice, ChoiceOf<&Config::gpu_codecs>(kGpuCodecsNames), 0, 0,
              "with gpu_network = staged: on: a GPU compresses its memory for other nodes itself; "
              "off: the host does"},
    ConfigKey{"gpu_ctas", Kind::kInteger, &Config::gpu_ctas, 1, 1024,
              "CUDA thread blocks that one sum or copy may use on a GPU"},
    ConfigKey{
        "sessions_per_uid", Kind::kQuota, &Config::sessions_per_uid, 0, 1'000'000,
        "sessions that one uid may have open; 0: no limit; auto: no more sessions and jobs than "
        "are left free for others"},
    ConfigKey{
        "memory_per_uid", Kind::kQuota, &Config::memory_per_uid, 0, std::uint64_t{1} << 50U,
        "bytes of host and GPU memory that one uid may share with the service; 0: no limit; auto: "
        "three quarters of the memory of this machine or of the service's control group"},
    ConfigKey{"operations_per_uid", Kind::kInteger, &Config::operations_per_uid, 0, 1'000'000'000,
              "operations and gradients that one uid may have open; 0: no limit"},
    ConfigKey{"node_name", Kind::kName, &Config::node_name, 0, 0,
              "name of this node, unique among all nodes; \"\": the host name"},
    ConfigKey{"node_address", Kind::kListen, &Config::node_address, 0, 0,
              "host:port at which other services reach this one; \"\": this is the only node"},
    ConfigKey{
        "forming_ms", Kind::kInteger, &Config::forming_ms, 1000, 86'400'000,
        "time that a job has for all ranks to attach and all nodes to connect; the first rank's "
        "timeout applies if it is longer"},
    ConfigKey{"detection_ms", Kind::kInteger, &Config::detection_ms, 200, 60'000,
              "a peer that is silent for so long counts as lost"},
    ConfigKey{"peers", Kind::kPeers, &Config::peers, 0, 0,
              "the only services that may connect, as name=host:port,...; \"\": all that have a "
              "certificate"},
    ConfigKey{"tls_authority", Kind::kPath, &Config::tls_authority, 0, kPathMax,
              "file with the CA certificate of the cluster"},
    ConfigKey{"tls_certificate", Kind::kPath, &Config::tls_certificate, 0, kPathMax,
              "file with the certificate of this node"},
    ConfigKey{"tls_key", Kind::kPath, &Config::tls_key, 0, kPathMax,
              "file with the private key of this node"},
    ConfigKey{"plain_text", Kind::kSwitch, &Config::plain_text, 0, 0,
              "allow connections without TLS to and from other hosts, and other users of this one"},
    ConfigKey{"role", Kind::kChoice, ChoiceOf<&Config::role>(kRoleNames), 0, 0,
              "node: runs ranks; server: a parameter server for the jobs of other nodes"},
    ConfigKey{
        "rendezvous", Kind::kAddress, &Config::rendezvous, 0, 0,
        "host:port of the service at which a server registers and jobs without a rendezvous of "
        "their own meet; \"\" with peers: the first of them"},
    ConfigKey{"architecture", Kind::kChoice, ChoiceOf<&Config::architecture>(kArchitectureNames), 0,
              0, "architecture of jobs led by this node that name none"},
    ConfigKey{"policy", Kind::kChoice, kPolicyChoice, 0, 0,
              "planning policy of jobs led by this node that name none"},
    ConfigKey{"block_bytes", Kind::kInteger, &Config::block_bytes, 4096, std::uint64_t{1} << 30U,
              "size of the blocks into which an operation between nodes is cut"},
    ConfigKey{"verify", Kind::kInteger, &Config::verify, 0, 1'000'000,
              "compare the results of all ranks every so many iterations or operations; 0: never"},
    ConfigKey{
        "rails", Kind::kRails, &Config::rails, 0, 0,
        "network devices, like eth0,eth1; each gets a lane, and the others take over if one fails; "
        "\"\": one lane at node_address"},
    ConfigKey{
        "network_transports", Kind::kText, &Config::network_transports, 0, kTransportsMax,
        "value of UCX_TLS: transports that UCX may use between nodes; \"\": chosen by the service"},
    ConfigKey{"network_credit_bytes", Kind::kInteger, &Config::network_credit_bytes, 4096,
              std::uint64_t{1} << 40U,
              "bytes that one job may have in flight on one lane between nodes"},
    ConfigKey{"network_algorithm", Kind::kChoice,
              ChoiceOf<&Config::network_algorithm>(kNetworkAlgorithmNames), 0, 0,
              "all-reduce algorithm between nodes; auto: chosen by block size and measured cost"},
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
