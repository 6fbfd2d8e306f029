// What doctor finds: one line a check, with a remedy where there is something to do.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "client/cli/ctl/views.h"

namespace headrace::ctl {

enum class Level {
  kOk,
  kNote,     // worth knowing, nothing to do
  kWarning,  // works, but not as well as it could
  kProblem,  // does not work; makes the exit code 1
};

struct Finding {
  std::string check;
  Level level = Level::kOk;
  std::string text;
  std::string remedy;  // empty when there is nothing to do
};
using Findings = std::vector<Finding>;

// "ok", "note", "warning", "problem".
std::string_view LevelName(Level level);
bool HasProblem(const Findings& findings);

std::string FindingsTable(const Findings& findings, bool with_header);
Json FindingsJson(const Findings& findings);

}  // namespace headrace::ctl
