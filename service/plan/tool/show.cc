#include "service/plan/tool/show.h"

#include <fmt/format.h>

#include <memory>

#include "ipc/base/option_range.h"
#include "service/plan/canonical.h"
#include "service/plan/planner.h"
#include "service/plan/simulate.h"
#include "service/plan/tool/block_text.h"
#include "service/plan/tool/gantt.h"
#include "service/plan/tool/options.h"
#include "service/plan/tool/run.h"

namespace headrace::plan::tool {
namespace {

struct ShowOptions {
  std::string path;
  std::string policy = "exact";
  ProfileOptions profile;
  NetworkOptions network;
  JitterOptions jitter;
  std::string svg_path;
  int columns = 100;
  bool canonical = false;
};

void PrintBlocks(const plan::Plan& made, const plan::Profile& profile, double backward_s) {
  for (std::size_t index = 0; index < made.blocks.size(); ++index) {
    const plan::PlannedBlock& block = made.blocks[index];
    fmt::print("block {:<3} phase {}  {:>9.3f} to {:>9.3f} ms  {:>10}  {}\n", index,
               block.begin_s < backward_s ? 1 : 2, block.begin_s * 1e3, block.end_s * 1e3,
               Size(block.bytes), Contents(block, profile));
  }
}

int Show(const ShowOptions& options) {
  const Result<NamedProfile> named = ReadNamedProfile(options.path, options.profile.scale);
  if (!named) return Fail("show", named.error(), kExitProblem);
  const plan::Profile& profile = named->profile;
  const Result<plan::Route> route = MakeRoute(options.network, profile);
  if (!route) return Fail("show", route.error(), kExitUsage);
  const Result<plan::Policy> policy = ReadPolicy(options.policy);
  if (!policy) return Fail("show", policy.error(), kExitUsage);
  const Result<plan::Plan> made =
      plan::MakePlan(*policy, profile, *route, 1, options.profile.settings);
  if (!made) return Fail("show", made.error(), kExitUsage);
  if (options.canonical) {
    fmt::print("{}", plan::Canonical(*made));
    return kExitOk;
  }
  const auto simulation =
      plan::Simulate(profile, *route, *made, {options.jitter.fraction, options.jitter.seed});
  if (!simulation) return Fail("show", simulation.error(), kExitUsage);
  const std::string title =
      fmt::format("{}, {}: {} blocks, iteration {:.3f} ms, {:.4f} of the lower bound",
                  profile.model.empty() ? named->path : profile.model, options.policy,
                  made->blocks.size(), simulation->iteration_s * 1e3, simulation->excess + 1);
  fmt::print("{}\nplan hash {:016x}; the forward pass waits {:.3f} ms in all\n\n", title,
             plan::HashOf(*made), simulation->forward_wait_s * 1e3);
  PrintBlocks(*made, profile, simulation->release_s.front());
  const Gantt gantt = MakeGantt(title, profile, *route, *made, *simulation);
  fmt::print("\n{}", GanttText(gantt, options.columns));
  if (options.svg_path.empty()) return kExitOk;
  const Status status = WriteFile(options.svg_path, GanttSvg(gantt));
  return status ? kExitOk : Fail("show", status.error(), kExitProblem);
}

}  // namespace

void AddShow(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ShowOptions>();  // owned by the subcommand's callback
  CLI::App* command = app.add_subcommand("show", "Print one plan as a table and as a Gantt chart");
  command->add_option("PROFILE", options->path, "profile file")->required();
  command->add_option("--policy", options->policy, "the policy");
  command->add_option("--svg", options->svg_path, "write the chart to this file");
  command->add_option("--columns", options->columns, "width of the text chart in columns")
      ->check(Between(20, 1000));
  command->add_flag("--canonical", options->canonical,
                    "print only the plan, in the text format that nodes exchange");
  AddProfileOptions(*command, options->profile);
  AddNetworkOptions(*command, options->network);
  command->add_option("--jitter", options->jitter.fraction, "vary the times by up to this fraction")
      ->check(Between(0.0, 1.0));
  command->add_option("--seed", options->jitter.seed, "seed of the jitter's random numbers");
  command->callback([options, &exit_code] { exit_code = Show(*options); });
}

}  // namespace headrace::plan::tool
