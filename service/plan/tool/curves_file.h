// `headrace-plan curves`: the curves of a table that somebody else made.
#pragma once

#include <CLI/CLI.hpp>
#include <string_view>

#include "ipc/base/result.h"
#include "service/plan/tool/curves.h"

namespace headrace::plan::tool {

// Panels of a table with the header "panel,curve,x,y": a line for each point, panels and curves in
// the order in which they first appear. The error names the line and the field.
Result<std::vector<Panel>> ParseCurves(std::string_view text);

void AddCurves(CLI::App& app, int& exit_code);

}  // namespace headrace::plan::tool
