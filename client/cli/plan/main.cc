// headrace-plan: plans and simulates iterations offline. It needs no service.
#include <CLI/CLI.hpp>

#include "client/cli/plan/options.h"
#include "client/cli/plan/show.h"
#include "client/cli/plan/simulate.h"
#include "client/cli/plan/sweep.h"

int main(int argc, char** argv) {
  CLI::App app("Plan and simulate the communication of one training iteration.", "headrace-plan");
  app.require_subcommand(1);
  int exit_code = headrace::cli::kExitOk;
  headrace::cli::AddSimulate(app, exit_code);
  headrace::cli::AddSweep(app, exit_code);
  headrace::cli::AddShow(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? headrace::cli::kExitOk : headrace::cli::kExitUsage;
  }
  return exit_code;
}
