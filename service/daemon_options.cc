#include "service/daemon_options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <vector>

#include "service/config/config_address.h"
#include "service/config/invocation.h"
#include "service/http/http_thread.h"
#include "transport/reduce/reduce.h"

namespace headrace::service {
namespace {

transport::Algorithm AlgorithmOf(NetworkAlgorithm algorithm) {
  using transport::Algorithm;
  switch (algorithm) {
    case NetworkAlgorithm::kAuto:
      return Algorithm::kAuto;
    case NetworkAlgorithm::kDirectExchange:
      return Algorithm::kDirectExchange;
    case NetworkAlgorithm::kRecursiveDoubling:
      return Algorithm::kRecursiveDoubling;
    case NetworkAlgorithm::kDirectScatter:
      return Algorithm::kDirectScatter;
    case NetworkAlgorithm::kRing:
      return Algorithm::kRing;
  }
  return Algorithm::kAuto;
}

std::map<std::string, std::string> KnownPeers(const Config& config) {
  std::map<std::string, std::string> peers;
  // The configuration has been checked, so this is not an error here.
  if (Result<std::vector<ConfiguredPeer>> known = ParsePeers(config.peers); known) {
    for (const ConfiguredPeer& peer : *known) peers[peer.name] = peer.address.Text();
  }
  return peers;
}

// By default nobody but root and this service's user hands over more than three quarters of the
// memory, takes more than an eighth of the mappings, or leaves too few sessions and jobs for
// others.
QuotaLimits QuotasOf(const Config& config, const MemoryFound& memory) {
  QuotaLimits limits{.segments_of_others = FindMappingsMax() / 8,
                     .segments_of_all_others = FindMappingsMax() / 2,
                     .service_uid = ::geteuid()};
  if (config.sessions_per_uid == kQuotaAuto) {
    limits.share_ranks = true;
  } else {
    limits.sessions = config.sessions_per_uid;
  }
  if (config.memory_per_uid == kQuotaAuto) {
    limits.memory_of_others = DefaultMemoryPerUid(memory);
  } else {
    limits.memory = config.memory_per_uid;
  }
  return limits;
}

std::vector<std::string> RailsOf(const Config& config) {
  Result<std::vector<std::string>> rails = ParseRails(config.rails);
  return rails ? std::move(rails).value() : std::vector<std::string>();
}

}  // namespace

std::uint64_t ServedResidualsMax(const Config& config, const MemoryFound& memory) {
  return config.memory_per_uid == kQuotaAuto ? DefaultMemoryPerUid(memory) : config.memory_per_uid;
}

PeerOptions PeerOptionsOf(const Config& config, std::uint32_t nccl_lanes) {
  return {.version = std::string(Version()),
          .node_name = config.node_name,
          .address = config.node_address,
          .rails = RailsOf(config),
          .server = config.role == Role::kServer,
          .rendezvous = config.rendezvous,
          .detection_ns = static_cast<TimeNs>(config.detection_ms) * kMillisecond,
          .peers = KnownPeers(config),
          .architecture = config.architecture,
          .policy = config.policy,
          .block_bytes = config.block_bytes,
          .verify = static_cast<std::uint32_t>(config.verify),
          .algorithm = AlgorithmOf(config.network_algorithm),
          .nccl_lanes = nccl_lanes,
          .forming_ns = static_cast<TimeNs>(config.forming_ms) * kMillisecond,
          .tls_authority = config.tls_authority,
          .tls_certificate = config.tls_certificate,
          .tls_key = config.tls_key,
          .plain_text = config.plain_text};
}

ControlOptions ControlOptionsOf(const Config& config, const std::string& gpus_missing,
                                bool has_lanes, unsigned peer_port, const MemoryFound& memory) {
  const bool by_default = config.memory_per_uid == kQuotaAuto;
  return {.socket_path = config.socket_path,
          .socket_mode = static_cast<std::uint32_t>(config.socket_mode),
          .version = std::string(Version()),
          .config_text = PrintConfig(config),
          .reduce_target = std::string(transport::SimdTargetName()),
          .operation_timeout_ms = static_cast<std::uint32_t>(config.operation_timeout_ms),
          .drain_timeout_ns = static_cast<TimeNs>(config.drain_timeout_ms) * kMillisecond,
          .late_ns = static_cast<TimeNs>(config.late_ms) * kMillisecond,
          .quotas = QuotasOf(config, memory),
          .memory_found = by_default ? memory.bytes : 0,
          .memory_limited_by = by_default ? memory.limited_by : std::string(),
          .operations_per_uid = config.operations_per_uid,
          .gpus_missing = gpus_missing.empty()
                              ? ""
                              : fmt::format("this service uses no GPUs: {}", gpus_missing),
          .nccl_between_nodes = config.gpu_network == GpuNetwork::kNccl,
          .rendezvous = {.names = {.node_name = config.node_name,
                                   .address = config.node_address,
                                   .port = peer_port,
                                   .peers = KnownPeers(config)},
                         .server = config.role == Role::kServer,
                         .rendezvous = config.rendezvous,
                         .has_lanes = has_lanes},
          .descriptors_of_others = (config.node_address.empty() ? 0 : kPeerDescriptorsMax) +
                                   (config.http_address.empty() ? 0 : kHttpDescriptorsMax)};
}

std::string GpuText(const transport::CudaDevice& gpu) {
  return fmt::format(
      "GPU {}: {}, {} MiB, capability {}.{}, {} multiprocessors; {} write and await words; {}",
      gpu.ordinal, gpu.name, gpu.memory_size >> 20U, gpu.capability_major, gpu.capability_minor,
      gpu.multiprocessors_count, gpu.stream_words ? "its streams" : "host calls",
      gpu.mps
          ? "processes share it by MPS at the same time, and a fatal fault in one of them, such "
            "as an illegal address, ends the work of all of them on it"
          : "processes take turns on it, since there is no MPS");
}

std::vector<std::string> RailsOfLane(const std::vector<std::string>& devices, std::size_t lane) {
  std::vector<std::string> rails;
  for (std::size_t i = 0; i < std::min(devices.size(), kRailsOfLaneMax); ++i) {
    rails.push_back(devices[(lane + i) % devices.size()]);
  }
  return rails;
}

Status CheckGpuFits(const Config& config, const transport::CudaDevice& gpu) {
  const auto fits = static_cast<std::uint64_t>(gpu.multiprocessors_count);
  if (config.gpu_ctas <= fits) return {};
  return Error(Code::kInvalidArgument,
               fmt::format("gpu_ctas is {}, but GPU {} ({}) has {} multiprocessors, which a sum or "
                           "move would take for itself: set gpu_ctas to {} at most",
                           config.gpu_ctas, gpu.ordinal, gpu.name, fits, fits));
}

}  // namespace headrace::service
