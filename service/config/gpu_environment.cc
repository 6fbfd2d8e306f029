#include "service/config/gpu_environment.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <string_view>

namespace headrace::service {
namespace {

using Variables = std::map<std::string, std::string>;

// As many hardware queues as a GPU has for one process; without it 8, and streams that share one
// wait for each other, also for a kernel that waits for another node.
constexpr std::string_view kConnections = "CUDA_DEVICE_MAX_CONNECTIONS";
constexpr std::string_view kConnectionsMax = "32";

Error Refused(std::string text) { return Error(Code::kInvalidArgument, std::move(text)); }

bool UsesNccl(const Config& config) {
  return config.gpu_lane == GpuLaneKind::kNccl || config.gpu_network == GpuNetwork::kNccl;
}

Status CheckConnections(const Config& config, const std::optional<std::string>& given) {
  if (!given || *given == kConnectionsMax || config.gpu_network != GpuNetwork::kNccl) return {};
  return Refused(fmt::format(
      "{} is {}, but gpu_network is nccl, whose streams wait for other nodes and must not share a "
      "queue of the GPU: unset it, or set it to {}",
      kConnections, *given, kConnectionsMax));
}

// A switch of NCCL's that must be off.
struct Switch {
  std::string_view name;
  std::string_view reason;
};
constexpr Switch kSwitches[] = {
    {"NCCL_LAUNCH_ORDER_IMPLICIT",
     "makes one job's collectives wait for another's in the order of launches, which differs "
     "between "
     "nodes, so that jobs deadlock"},
    {"NCCL_COMM_BLOCKING", "makes NCCL's calls wait for other nodes, and the lane with them"},
};

Status CheckSwitch(const Switch& rule, const std::optional<std::string>& given) {
  if (!given || given->empty() || *given == "0") return {};
  return Refused(
      fmt::format("{} is {}, which {}: unset it, or set it to 0", rule.name, *given, rule.reason));
}

// NCCL takes these before what the service asks for.
Status CheckCtas(const Config& config, std::string_view name,
                 const std::optional<std::string>& given) {
  if (!given) return {};
  std::uint64_t ctas = 0;
  const auto [end, error] = std::from_chars(given->data(), given->data() + given->size(), ctas);
  const bool is_number = error == std::errc() && end == given->data() + given->size();
  if (is_number && ctas <= config.gpu_ctas) return {};
  return Refused(fmt::format(
      "{} is {}, but gpu_ctas is {}, by which the service counts what runs side by side on a GPU: "
      "unset it, and set gpu_ctas",
      name, *given, config.gpu_ctas));
}

Status AddNccl(const Config& config, const Environment& environment, Variables& variables) {
  for (const Switch& rule : kSwitches) {
    const std::string name(rule.name);
    if (Status checked = CheckSwitch(rule, environment(name)); !checked) return checked;
    variables[name] = "0";
  }
  for (const std::string name : {"NCCL_MIN_CTAS", "NCCL_MAX_CTAS"}) {
    if (Status checked = CheckCtas(config, name, environment(name)); !checked) return checked;
  }
  if (!environment("NCCL_MAX_CTAS")) variables["NCCL_MAX_CTAS"] = std::to_string(config.gpu_ctas);
  return {};
}

}  // namespace

Result<Variables> GpuEnvironment(const Config& config, const Environment& environment) {
  Variables variables;
  if (config.gpu == GpuUse::kOff) return variables;
  const std::string connections(kConnections);
  const std::optional<std::string> given = environment(connections);
  if (Status checked = CheckConnections(config, given); !checked) return checked.error();
  if (!given) variables[connections] = kConnectionsMax;
  if (!UsesNccl(config)) return variables;
  if (Status added = AddNccl(config, environment, variables); !added) return added.error();
  return variables;
}

}  // namespace headrace::service
