// What all subcommands of headrace-plan share: the profiles, the network, the policies.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "ipc/base/result.h"
#include "ipc/profile.h"
#include "service/plan/plan.h"
#include "service/plan/policies.h"
#include "service/plan/route.h"
#include "service/plan/scale.h"

namespace headrace::plan::tool {

// A cost line, or a cluster to work one out from.
struct NetworkOptions {
  double startup_us = -1;  // below 0: not given
  double ns_per_byte = -1;
  double pull_startup_us = -1;  // of parameter servers' second transfer; as the first if not given
  double pull_ns_per_byte = -1;
  double ratio = -1;  // communication / computation instead of ns_per_byte
  std::uint32_t nodes = 0;
  std::uint32_t gpus_per_node = 1;
  double link_gbit = 100;
  double link_latency_us = 5;
  double nvlink_gbyte = 400;
  double nvlink_latency_us = 1;
  std::string algorithm = "two-level";
  std::string architecture = "allreduce";
  std::string placement = "extra";
  std::uint32_t servers = 0;  // 0: as many as nodes
};

void AddNetworkOptions(CLI::App& app, NetworkOptions& options);

// The route of blocks for a profile. The error says which option to change.
Result<plan::Route> MakeRoute(const NetworkOptions& options, const plan::Profile& profile);

// The error lists the names of all policies.
Result<plan::Policy> ReadPolicy(const std::string& name);
// "all", or names separated by commas.
Result<std::vector<plan::Policy>> ReadPolicies(const std::string& text);

struct NamedProfile {
  std::string path;
  plan::Profile profile;
};

// What is read as a profile and how it is planned, beside the network.
struct ProfileOptions {
  double scale = 1;  // of all times
  plan::PolicySettings settings;
};

void AddProfileOptions(CLI::App& app, ProfileOptions& options);

// The error names the file, and the line and field where it has them.
Result<NamedProfile> ReadNamedProfile(const std::string& path, double scale);
Status WriteFile(const std::string& path, const std::string& text);

// Programs end with these: all well, something was found wrong, the call itself was wrong.
inline constexpr int kExitOk = 0;
inline constexpr int kExitProblem = 1;
inline constexpr int kExitUsage = 2;

// Says on stderr what a subcommand failed of; returns the exit code.
int Fail(const char* command, const Error& error, int exit_code);

}  // namespace headrace::plan::tool
