// One policy on one profile: the plan, and how it goes with jitter.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <vector>

#include "ipc/base/result.h"
#include "ipc/profile.h"
#include "service/plan/plan.h"
#include "service/plan/policies.h"
#include "service/plan/route.h"

namespace headrace::plan::tool {

struct JitterOptions {
  double fraction = 0;
  std::uint64_t seed = 1;
  std::uint32_t runs = 1;  // simulated iterations, with seeds from `seed` on
};

void AddJitterOptions(CLI::App& app, JitterOptions& options);

// Means over the simulated iterations.
struct Outcome {
  plan::Plan plan;
  double iteration_s = 0;
  double lower_bound_s = 0;
  std::vector<double> utilisation;  // per lane of the route
};

// left / right, where nothing to nothing counts as even: a profile may have no times at all.
double Ratio(double left, double right);

Result<Outcome> RunPolicy(plan::Policy policy, const plan::Profile& profile,
                          const plan::Route& route, const plan::PolicySettings& settings,
                          const JitterOptions& jitter);

}  // namespace headrace::plan::tool
