// headrace-plan sweep: how policies compare as the network changes; CSV and curves.
#pragma once

#include <CLI/CLI.hpp>

namespace headrace::plan::tool {

void AddSweep(CLI::App& app, int& exit_code);

}  // namespace headrace::plan::tool
