// headrace-plan: plans and simulates iterations offline. It needs no service.
#include <CLI/CLI.hpp>

#include "service/plan/tool/curves_file.h"
#include "service/plan/tool/operations.h"
#include "service/plan/tool/options.h"
#include "service/plan/tool/show.h"
#include "service/plan/tool/simulate.h"
#include "service/plan/tool/sweep.h"

int main(int argc, char** argv) {
  CLI::App app("Plan and simulate the communication of one training iteration.", "headrace-plan");
  app.require_subcommand(1);
  int exit_code = headrace::plan::tool::kExitOk;
  headrace::plan::tool::AddSimulate(app, exit_code);
  headrace::plan::tool::AddSweep(app, exit_code);
  headrace::plan::tool::AddShow(app, exit_code);
  headrace::plan::tool::AddCurves(app, exit_code);
  headrace::plan::tool::AddOperations(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? headrace::plan::tool::kExitOk : headrace::plan::tool::kExitUsage;
  }
  return exit_code;
}
