// headrace-plan operations: what single operations cost, by algorithm.
#pragma once

#include <CLI/CLI.hpp>

namespace headrace::plan::tool {

// Adds the subcommand; `exit_code` gets its result when it is called.
void AddOperations(CLI::App& app, int& exit_code);

}  // namespace headrace::plan::tool
