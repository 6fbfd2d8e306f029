// headrace-plan show: one plan in words and as a Gantt chart.
#pragma once

#include <CLI/CLI.hpp>

namespace headrace::plan::tool {

void AddShow(CLI::App& app, int& exit_code);

}  // namespace headrace::plan::tool
