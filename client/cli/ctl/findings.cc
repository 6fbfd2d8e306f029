#include "client/cli/ctl/findings.h"

#include <algorithm>

#include "client/cli/ctl/table.h"

namespace headrace::ctl {

std::string_view LevelName(Level level) {
  switch (level) {
    case Level::kOk:
      return "ok";
    case Level::kNote:
      return "note";
    case Level::kWarning:
      return "warning";
    case Level::kProblem:
      return "problem";
  }
  return "";
}

bool HasProblem(const Findings& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.level == Level::kProblem; });
}

std::string FindingsTable(const Findings& findings, bool with_header) {
  Table table({{"CHECK"}, {"RESULT"}, {"FOUND"}});
  for (const Finding& finding : findings) {
    const std::string text =
        finding.remedy.empty() ? finding.text : finding.text + "; " + finding.remedy;
    table.Add({finding.check, std::string(LevelName(finding.level)), text});
  }
  return table.Render(with_header);
}

Json FindingsJson(const Findings& findings) {
  Json checks = Json::array();
  for (const Finding& finding : findings) {
    checks.push_back({{"check", finding.check},
                      {"result", LevelName(finding.level)},
                      {"found", JsonText(finding.text)},
                      {"remedy", JsonText(finding.remedy)}});
  }
  return {{"problem", HasProblem(findings)}, {"checks", std::move(checks)}};
}

}  // namespace headrace::ctl
