#include "service/plan/tool/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "ipc/base/option_range.h"
#include "service/plan/tool/curves.h"
#include "service/plan/tool/options.h"
#include "service/plan/tool/run.h"

namespace headrace::plan::tool {
namespace {

struct SweepOptions {
  std::vector<std::string> paths;
  std::string over = "bandwidth";
  double from = 1;
  double to = 400;
  int points = 25;
  std::string policies = "all";
  ProfileOptions profile;
  NetworkOptions network;
  JitterOptions jitter;
  std::string csv_path;
  std::string svg_path;
};

// What is swept, with the option that it stands for.
Status Set(const std::string& over, double value, ProfileOptions& profile,
           NetworkOptions& network) {
  const bool is_cluster = network.nodes > 0;
  if (over == "bandwidth") {
    if (is_cluster) {
      network.link_gbit = value;
    } else {
      network.ns_per_byte = 8 / value;
      network.ratio = -1;
    }
  } else if (over == "startup") {
    (is_cluster ? network.link_latency_us : network.startup_us) = value;
  } else if (over == "unit") {
    profile.settings.unit_bytes = static_cast<std::uint64_t>(value);
  } else if (over == "ratio") {
    if (is_cluster) return Error(Code::kInvalidArgument, "--over ratio needs --startup-us");
    network.ratio = value;
  } else {
    if (!is_cluster) return Error(Code::kInvalidArgument, "--over nodes needs --nodes");
    network.nodes = static_cast<std::uint32_t>(value);
  }
  return {};
}

std::string AxisLabel(const SweepOptions& options) {
  if (options.over == "bandwidth") return "bandwidth, Gbit/s";
  if (options.over == "ratio") return "communication / computation";
  if (options.over == "nodes") return "nodes";
  if (options.over == "unit") return "unit, bytes";
  return options.network.nodes > 0 ? "link latency, us" : "startup, us";
}

// Evenly spaced on a logarithmic scale; whole and without repeats for nodes, whole elements of any
// type for units.
std::vector<double> Values(const SweepOptions& options) {
  std::vector<double> values;
  for (int index = 0; index < options.points; ++index) {
    const double share = options.points > 1 ? index / (options.points - 1.0) : 0;
    double value = options.from * std::pow(options.to / options.from, share);
    if (options.over == "nodes") value = std::round(value);
    if (options.over == "unit") value = std::max(8.0, std::round(value / 8) * 8);
    if (values.empty() || value > values.back()) values.push_back(value);
  }
  return values;
}

Status SweepProfile(const SweepOptions& options, const NamedProfile& named,
                    const std::vector<plan::Policy>& policies, std::string& csv, Panel& panel) {
  panel.title = named.profile.model.empty() ? named.path : named.profile.model;
  for (const plan::Policy policy : policies) {
    panel.curves.push_back({std::string(plan::Name(policy)), {}});
  }
  for (const double value : Values(options)) {
    NetworkOptions network = options.network;
    ProfileOptions sized = options.profile;
    if (Status status = Set(options.over, value, sized, network); !status) return status;
    const Result<plan::Route> route = MakeRoute(network, named.profile);
    if (!route) return route.error();
    const Result<Outcome> wfbp =
        RunPolicy(plan::Policy::kWfbp, named.profile, *route, {}, options.jitter);
    if (!wfbp) return wfbp.error();
    for (std::size_t index = 0; index < policies.size(); ++index) {
      const Result<Outcome> outcome =
          RunPolicy(policies[index], named.profile, *route, sized.settings, options.jitter);
      if (!outcome) return outcome.error();
      const double speedup = Ratio(wfbp->iteration_s, outcome->iteration_s);
      panel.curves[index].points.emplace_back(value, speedup);
      csv += fmt::format("{},{:.6g},{},{:.9g},{:.9g},{:.6f},{:.6f},{}\n", panel.title, value,
                         plan::Name(policies[index]), outcome->iteration_s, outcome->lower_bound_s,
                         Ratio(outcome->iteration_s, outcome->lower_bound_s), speedup,
                         outcome->plan.blocks.size());
    }
  }
  return {};
}

int Sweep(const SweepOptions& options) {
  const auto policies = ReadPolicies(options.policies);
  if (!policies) return Fail("sweep", policies.error(), kExitUsage);
  Chart chart{
      "Speed-up over wfbp", AxisLabel(options), "iteration time of wfbp / of the policy", {}};
  std::string csv = fmt::format(
      "model,{},policy,iteration_s,lower_bound_s,ratio_to_bound,speedup_over_wfbp,blocks\n",
      options.over);
  for (const std::string& path : options.paths) {
    const Result<NamedProfile> named = ReadNamedProfile(path, options.profile.scale);
    if (!named) return Fail("sweep", named.error(), kExitProblem);
    chart.panels.emplace_back();
    const Status status = SweepProfile(options, *named, *policies, csv, chart.panels.back());
    if (!status) return Fail("sweep", status.error(), kExitUsage);
  }
  if (options.csv_path.empty()) {
    fmt::print("{}", csv);
  } else if (const Status status = WriteFile(options.csv_path, csv); !status) {
    return Fail("sweep", status.error(), kExitProblem);
  }
  if (options.svg_path.empty()) return kExitOk;
  const Status status = WriteFile(options.svg_path, ChartSvg(chart));
  return status ? kExitOk : Fail("sweep", status.error(), kExitProblem);
}

}  // namespace

void AddSweep(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<SweepOptions>();  // owned by the subcommand's callback
  CLI::App* command = app.add_subcommand("sweep", "Compare the policies over a range of networks");
  command->add_option("PROFILE", options->paths, "profile files")->required();
  command->add_option("--over", options->over, "the quantity that varies")
      ->check(CLI::IsMember({"bandwidth", "startup", "nodes", "ratio", "unit"}));
  command->add_option("--from", options->from, "first value: Gbit/s, us, nodes, ratio or bytes")
      ->check(Between(1e-6, 1e15, "a millionth or more"));
  command->add_option("--to", options->to, "last value")
      ->check(Between(1e-6, 1e15, "a millionth or more"));
  command->add_option("--points", options->points, "number of values, on a logarithmic scale")
      ->check(Between(1, 1000));
  command->add_option("--policy", options->policies, "policies, separated by commas, or all");
  command->add_option("--csv", options->csv_path,
                      "write the table to this file instead of standard output");
  command->add_option("--svg", options->svg_path, "write the curves of the speed-ups to this file");
  AddProfileOptions(*command, options->profile);
  AddNetworkOptions(*command, options->network);
  AddJitterOptions(*command, options->jitter);
  command->callback([options, &exit_code] { exit_code = Sweep(*options); });
}

}  // namespace headrace::plan::tool
