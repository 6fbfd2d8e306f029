#include "service/plan/tool/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "service/plan/canonical.h"
#include "service/plan/tool/options.h"
#include "service/plan/tool/run.h"

namespace headrace::plan::tool {
namespace {

using Json = nlohmann::ordered_json;

struct SimulateOptions {
  std::vector<std::string> paths;
  std::string policies = "all";
  ProfileOptions profile;
  NetworkOptions network;
  JitterOptions jitter;
  bool json = false;
  bool brief = false;
};

struct Comparison {
  NamedProfile profile;
  plan::Route route;
  std::vector<Outcome> outcomes;
  double wfbp_s = 0;  // what speed-ups are counted from
};

Result<Comparison> Compare(const SimulateOptions& options, NamedProfile profile) {
  Result<plan::Route> route = MakeRoute(options.network, profile.profile);
  if (!route) return route.error();
  const auto policies = ReadPolicies(options.policies);
  if (!policies) return policies.error();
  Comparison comparison{std::move(profile), std::move(route.value()), {}, 0};
  for (const plan::Policy policy : *policies) {
    Result<Outcome> outcome = RunPolicy(policy, comparison.profile.profile, comparison.route,
                                        options.profile.settings, options.jitter);
    if (!outcome) return outcome.error();
    comparison.outcomes.push_back(std::move(outcome.value()));
  }
  Result<Outcome> wfbp = RunPolicy(plan::Policy::kWfbp, comparison.profile.profile,
                                   comparison.route, {}, options.jitter);
  if (!wfbp) return wfbp.error();
  comparison.wfbp_s = wfbp->iteration_s;
  return comparison;
}

void PrintTable(const Comparison& comparison) {
  const plan::Profile& profile = comparison.profile.profile;
  const plan::Workload work = plan::MakeWorkload(profile);
  fmt::print("{}: {} tensors, {:.1f} MB, backward {:.3f} ms, forward {:.3f} ms\n",
             profile.model.empty() ? comparison.profile.path : profile.model, work.size(),
             static_cast<double>(work.total_bytes()) / 1e6, work.backward_s() * 1e3,
             work.forward_s() * 1e3);
  fmt::print("{:<16} {:>12} {:>9} {:>9} {:>8} {:>11}\n", "policy", "iteration ms", "/ bound",
             "x wfbp", "blocks", "lanes busy");
  for (const Outcome& outcome : comparison.outcomes) {
    std::string lanes;
    for (const double share : outcome.utilisation) {
      lanes += fmt::format("{}{:.0f}%", lanes.empty() ? "" : " ", share * 100);
    }
    fmt::print("{:<16} {:>12.3f} {:>9.4f} {:>9.3f} {:>8} {:>11}\n", plan::Name(outcome.plan.policy),
               outcome.iteration_s * 1e3, Ratio(outcome.iteration_s, outcome.lower_bound_s),
               Ratio(comparison.wfbp_s, outcome.iteration_s), outcome.plan.blocks.size(), lanes);
  }
}

Json BlocksJson(const plan::Plan& made) {
  Json blocks = Json::array();
  for (const plan::PlannedBlock& block : made.blocks) {
    Json ranges = Json::array();
    for (const plan::TensorRange& range : block.ranges) {
      ranges.push_back(
          {{"tensor", range.tensor}, {"offset_bytes", range.offset_bytes}, {"bytes", range.bytes}});
    }
    blocks.push_back({{"begin_s", block.begin_s}, {"end_s", block.end_s}, {"parts", ranges}});
  }
  return blocks;
}

void AppendJson(const Comparison& comparison, bool brief, Json& rows) {
  for (const Outcome& outcome : comparison.outcomes) {
    rows.push_back({{"profile", comparison.profile.path},
                    {"model", comparison.profile.profile.model},
                    {"policy", plan::Name(outcome.plan.policy)},
                    {"iteration_s", outcome.iteration_s},
                    {"lower_bound_s", outcome.lower_bound_s},
                    {"predicted_s", outcome.plan.predicted_s},
                    {"ratio_to_bound", Ratio(outcome.iteration_s, outcome.lower_bound_s)},
                    {"speedup_over_wfbp", Ratio(comparison.wfbp_s, outcome.iteration_s)},
                    {"hash", fmt::format("{:016x}", plan::HashOf(outcome.plan))}});
    if (brief) {
      rows.back()["blocks"] = outcome.plan.blocks.size();
    } else {
      rows.back()["blocks"] = BlocksJson(outcome.plan);
    }
  }
}

int Simulate(const SimulateOptions& options) {
  Json rows = Json::array();
  for (const std::string& path : options.paths) {
    Result<NamedProfile> profile = ReadNamedProfile(path, options.profile.scale);
    if (!profile) return Fail("simulate", profile.error(), kExitProblem);
    const Result<Comparison> comparison = Compare(options, std::move(profile.value()));
    if (!comparison) return Fail("simulate", comparison.error(), kExitUsage);
    if (options.json) {
      AppendJson(*comparison, options.brief, rows);
    } else {
      if (path != options.paths.front()) fmt::print("\n");
      PrintTable(*comparison);
    }
  }
  if (options.json) fmt::print("{}\n", rows.dump(1));
  return kExitOk;
}

}  // namespace

void AddSimulate(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<SimulateOptions>();  // owned by the subcommand's callback
  CLI::App* command = app.add_subcommand("simulate", "Compare the policies on profiles");
  command->add_option("PROFILE", options->paths, "profile files")->required();
  command->add_option("--policy", options->policies, "policies, separated by commas, or all");
  auto* json = command->add_flag("--json", options->json,
                                 "print the plans as a JSON array instead of tables");
  command
      ->add_flag("--brief", options->brief,
                 "with --json: print the number of blocks instead of the blocks")
      ->needs(json);
  AddProfileOptions(*command, options->profile);
  AddNetworkOptions(*command, options->network);
  AddJitterOptions(*command, options->jitter);
  command->callback([options, &exit_code] { exit_code = Simulate(*options); });
}

}  // namespace headrace::plan::tool
