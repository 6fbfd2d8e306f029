#include "service/plan/tool/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <iterator>
#include <sstream>

#include "ipc/base/option_range.h"
#include "ipc/profile.h"
#include "service/plan/workload.h"

namespace headrace::plan::tool {
namespace {

using plan::Affine;
using plan::PiecewiseCost;
using plan::Route;

Error Usage(const std::string& what) { return {Code::kInvalidArgument, what}; }

plan::Placement PlacementOf(const NetworkOptions& options) {
  return options.placement == "colocated" ? plan::Placement::kColocated : plan::Placement::kExtra;
}

Result<Route> LineRoute(const NetworkOptions& options, const plan::Profile& profile) {
  double s_per_byte = options.ns_per_byte * 1e-9;
  if (options.ratio >= 0) {
    const plan::Workload work = plan::MakeWorkload(profile);
    s_per_byte = options.ratio * (work.backward_s() + work.forward_s()) /
                 static_cast<double>(work.total_bytes());
  } else if (options.ns_per_byte < 0) {
    return Usage("give --ns-per-byte or --ratio beside --startup-us, or --nodes instead");
  }
  const PiecewiseCost line = Affine(options.startup_us * 1e-6, s_per_byte);
  if (options.architecture == "allreduce") return plan::AllReduceRoute(line);
  const double pull_startup_s =
      (options.pull_startup_us < 0 ? options.startup_us : options.pull_startup_us) * 1e-6;
  const double pull_s_per_byte =
      options.pull_ns_per_byte < 0 ? s_per_byte : options.pull_ns_per_byte * 1e-9;
  return plan::ParameterServerRoute(line, Affine(pull_startup_s, pull_s_per_byte),
                                    PlacementOf(options));
}

Result<Route> ClusterRouteOf(const NetworkOptions& options) {
  const plan::Cluster cluster{options.nodes,
                              options.gpus_per_node,
                              options.link_latency_us * 1e-6,
                              options.link_gbit * 1e9 / 8,
                              options.nvlink_latency_us * 1e-6,
                              options.nvlink_gbyte * 1e9};
  if (Status status = CheckCluster(cluster); !status) return status.error();
  if (options.architecture == "ps") {
    const std::uint32_t servers = options.servers == 0 ? options.nodes : options.servers;
    return ClusterServerRoute(cluster, PlacementOf(options), servers);
  }
  return ClusterRoute(cluster, *plan::AllReduceModelNamed(options.algorithm));
}

}  // namespace

void AddNetworkOptions(CLI::App& app, NetworkOptions& options) {
  const auto not_negative = Between(0.0, 1e15, "0 or more");
  const auto bandwidth = Between(1e-6, 1e15, "a millionth or more");
  auto* startup = app.add_option("--startup-us", options.startup_us, "startup time of a block, us")
                      ->check(not_negative)
                      ->group("Cost line");
  auto* slope = app.add_option("--ns-per-byte", options.ns_per_byte, "time of a byte, ns")
                    ->check(not_negative)
                    ->group("Cost line");
  auto* ratio = app.add_option("--ratio", options.ratio,
                               "ratio of communication to computation, instead of --ns-per-byte")
                    ->check(not_negative)
                    ->excludes(slope)
                    ->group("Cost line");
  slope->needs(startup);
  ratio->needs(startup);
  app.add_option("--pull-startup-us", options.pull_startup_us,
                 "startup time of a pull from a parameter server; default: as --startup-us")
      ->check(not_negative)
      ->group("Cost line");
  app.add_option("--pull-ns-per-byte", options.pull_ns_per_byte,
                 "time of a byte of a pull; default: as --ns-per-byte")
      ->check(not_negative)
      ->group("Cost line");
  auto* nodes = app.add_option("--nodes", options.nodes, "number of nodes")
                    ->check(Between(1, 8192))
                    ->group("Cluster");
  nodes->excludes(startup);
  app.add_option("--gpus-per-node", options.gpus_per_node, "ranks on each node")
      ->check(Between(1, 8192))
      ->group("Cluster");
  app.add_option("--link-gbit", options.link_gbit, "network bandwidth of a node, Gbit/s")
      ->check(bandwidth)
      ->group("Cluster");
  app.add_option("--link-latency-us", options.link_latency_us, "latency of the network, us")
      ->check(not_negative)
      ->group("Cluster");
  app.add_option("--nvlink-gbyte", options.nvlink_gbyte, "bandwidth of a GPU inside the node, GB/s")
      ->check(bandwidth)
      ->group("Cluster");
  app.add_option("--nvlink-latency-us", options.nvlink_latency_us, "latency inside the node, us")
      ->check(not_negative)
      ->group("Cluster");
  app.add_option("--algorithm", options.algorithm, "all-reduce algorithm")
      ->check(CLI::IsMember({"ring", "halving-doubling", "tree", "two-level"}))
      ->group("Cluster");
  app.add_option("--architecture", options.architecture,
                 "allreduce: the ranks sum; ps: parameter servers sum")
      ->check(CLI::IsMember({"allreduce", "ps"}));
  app.add_option("--placement", options.placement,
                 "parameter servers on the nodes of the ranks or on extra nodes")
      ->check(CLI::IsMember({"colocated", "extra"}));
  app.add_option("--servers", options.servers,
                 "parameter servers on extra nodes; 0: as many as nodes");
}

Result<Route> MakeRoute(const NetworkOptions& options, const plan::Profile& profile) {
  if (options.nodes > 0) return ClusterRouteOf(options);
  if (options.startup_us >= 0) return LineRoute(options, profile);
  return Usage("give a cost line (--startup-us and --ns-per-byte) or a cluster (--nodes)");
}

Result<plan::Policy> ReadPolicy(const std::string& name) {
  if (const auto policy = plan::PolicyNamed(name)) return *policy;
  return Usage(fmt::format("--policy: unknown policy \"{}\" (known: {})", name,
                           fmt::join(plan::kPolicyNames, ", ")));
}

Result<std::vector<plan::Policy>> ReadPolicies(const std::string& text) {
  std::vector<plan::Policy> policies;
  if (text == "all") {
    // For the one set of times that a profile has `auto` is `exact`.
    std::ranges::copy_if(plan::kPolicies, std::back_inserter(policies),
                         [](plan::Policy each) { return each != plan::Policy::kAuto; });
    return policies;
  }
  std::istringstream names(text);
  for (std::string name; std::getline(names, name, ',');) {
    const Result<plan::Policy> policy = ReadPolicy(name);
    if (!policy) return policy.error();
    policies.push_back(*policy);
  }
  if (policies.empty()) return ReadPolicy(text).error();
  return policies;
}

void AddProfileOptions(CLI::App& app, ProfileOptions& options) {
  app.add_option("--scale", options.scale, "factor for all times of the profiles")
      ->check(Between(1e-9, 1e9, "above 0"));
  const auto count = Between<std::uint64_t>(1, std::uint64_t{1} << 40, "1 or more");
  app.add_option("--unit-bytes", options.settings.unit_bytes,
                 "unit of us-byte, partition of bytescheduler, bytesched-fused and p3, group of "
                 "ddp, horovod and dear, in bytes")
      ->check(count)
      ->group("Policies");
  app.add_option("--credits", options.settings.credits,
                 "partitions that bytescheduler and bytesched-fused have in flight")
      ->check(Between(1, 4096))
      ->group("Policies");
  app.add_option_function<double>(
         "--cycle-ms", [&options](double ms) { options.settings.cycle_s = ms * 1e-3; },
         "horovod's cycle time, ms")
      ->check(Between(1e-3, 1e6, "above 0"))
      ->group("Policies");
  app.add_flag("--barrier", options.settings.barrier,
               "let the forward pass wait for all blocks, with every policy")
      ->group("Policies");
}

Result<NamedProfile> ReadNamedProfile(const std::string& path, double scale) {
  Result<Profile> profile = ReadProfile(path);
  if (!profile) return profile.error();
  for (Tensor& tensor : profile->tensors) {
    tensor.backward_s *= scale;
    tensor.forward_s *= scale;
  }
  if (const Status status = CheckProfile(*profile); !status) {
    return status.error().Within(fmt::format("{} with times multiplied by {}", path, scale));
  }
  return NamedProfile{path, std::move(profile).value()};
}

int Fail(const char* command, const Error& error, int exit_code) {
  fmt::print(stderr, "headrace-plan {}: {}\n", command, error.text());
  return exit_code;
}

Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return SystemError("write " + path, errno);
  return {};
}

}  // namespace headrace::plan::tool
