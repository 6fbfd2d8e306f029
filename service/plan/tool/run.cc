#include "service/plan/tool/run.h"

#include "ipc/base/check.h"
#include "ipc/base/option_range.h"
#include "service/plan/planner.h"
#include "service/plan/simulate.h"

namespace headrace::plan::tool {

void AddJitterOptions(CLI::App& app, JitterOptions& options) {
  app.add_option("--jitter", options.fraction, "times vary by up to this fraction")
      ->check(Between(0.0, 1.0));
  app.add_option("--seed", options.seed, "of the jitter");
  app.add_option("--runs", options.runs, "iterations to average")->check(Between(1, 100'000));
}

double Ratio(double left, double right) { return right > 0 ? left / right : 1; }

Result<Outcome> RunPolicy(plan::Policy policy, const plan::Profile& profile,
                          const plan::Route& route, const plan::PolicySettings& settings,
                          const JitterOptions& jitter) {
  Result<plan::Plan> made = plan::MakePlan(policy, profile, route, 1, settings);
  if (!made) return made.error();
  Outcome outcome;
  outcome.plan = std::move(made.value());
  outcome.utilisation.assign(route.lanes.size(), 0);
  const double weight = 1.0 / jitter.runs;
  for (std::uint32_t run = 0; run < jitter.runs; ++run) {
    const auto simulation =
        plan::Simulate(profile, route, outcome.plan, {jitter.fraction, jitter.seed + run});
    if (!simulation) return simulation.error();
    outcome.iteration_s += simulation->iteration_s * weight;
    outcome.lower_bound_s += simulation->lower_bound_s * weight;
    HR_CHECK(simulation->lanes.size() == route.lanes.size(), simulation->lanes.size());
    for (std::size_t lane = 0; lane < route.lanes.size(); ++lane) {
      outcome.utilisation[lane] += simulation->lanes[lane].utilisation * weight;
    }
  }
  return outcome;
}

}  // namespace headrace::plan::tool
