#include "service/plan/tool/curves_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <memory>

#include "ipc/base/file.h"
#include "service/plan/tool/options.h"

namespace headrace::plan::tool {
namespace {

constexpr std::string_view kHeader = "panel,curve,x,y";
constexpr std::array<std::string_view, 4> kFields = {"panel", "curve", "x", "y"};
constexpr std::size_t kPanelsMax = 64;
constexpr std::size_t kCurvesMax = 64;  // of one panel
constexpr std::size_t kNameSizeMax = 80;

struct CurvesOptions {
  std::string path;
  std::string svg_path;
  Chart chart;
};

Error Refuse(std::size_t line, std::string_view field, const std::string& what) {
  return {Code::kInvalidArgument,
          fmt::format("line {}: {}{}{}", line, field, field.empty() ? "" : ": ", what)};
}

Result<double> Positive(std::string_view text, std::size_t line, std::string_view field) {
  double value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || rest != text.data() + text.size() || !std::isfinite(value)) {
    return Refuse(line, field, fmt::format("\"{}\" is not a number", text));
  }
  if (value <= 0) return Refuse(line, field, fmt::format("{} is not above 0", text));
  return value;
}

// The element of that name, added if it is not there; nothing where there are too many.
template <typename Named>
Named* Find(std::vector<Named>& all, std::string_view name, std::string Named::*field,
            std::size_t most) {
  for (Named& each : all) {
    if (each.*field == name) return &each;
  }
  if (all.size() == most) return nullptr;
  all.emplace_back();
  all.back().*field = std::string(name);
  return &all.back();
}

Status AddLine(std::string_view text, std::size_t line, std::vector<Panel>& panels) {
  std::array<std::string_view, kFields.size()> fields;
  for (std::size_t index = 0; index < fields.size(); ++index) {
    const std::size_t comma = text.find(',');
    if ((comma == std::string_view::npos) != (index + 1 == fields.size())) {
      return Refuse(line, "", fmt::format("expected {} fields: {}", kFields.size(), kHeader));
    }
    fields[index] = text.substr(0, comma);
    if (fields[index].empty()) return Refuse(line, kFields[index], "is empty");
    if (fields[index].size() > kNameSizeMax) {
      return Refuse(line, kFields[index], fmt::format("longer than {} bytes", kNameSizeMax));
    }
    if (comma != std::string_view::npos) text.remove_prefix(comma + 1);
  }
  const Result<double> x = Positive(fields[2], line, "x");
  if (!x) return x.error();
  const Result<double> y = Positive(fields[3], line, "y");
  if (!y) return y.error();
  Panel* panel = Find(panels, fields[0], &Panel::title, kPanelsMax);
  if (panel == nullptr) return Refuse(line, "panel", fmt::format("more than {}", kPanelsMax));
  Curve* curve = Find(panel->curves, fields[1], &Curve::name, kCurvesMax);
  if (curve == nullptr) return Refuse(line, "curve", fmt::format("more than {}", kCurvesMax));
  curve->points.emplace_back(*x, *y);
  return {};
}

int Draw(CurvesOptions& options) {
  const Result<std::string> text = ReadSmallFile(options.path, "not a table of curves");
  if (!text) return Fail("curves", text.error(), kExitProblem);
  Result<std::vector<Panel>> panels = ParseCurves(*text);
  if (!panels) return Fail("curves", panels.error().Within(options.path), kExitProblem);
  options.chart.panels = std::move(panels.value());
  const Status status = WriteFile(options.svg_path, ChartSvg(options.chart));
  return status ? kExitOk : Fail("curves", status.error(), kExitProblem);
}

}  // namespace

Result<std::vector<Panel>> ParseCurves(std::string_view text) {
  std::vector<Panel> panels;
  std::size_t line = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view row = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (++line == 1) {
      if (row != kHeader) return Refuse(1, "", fmt::format("expected the header {}", kHeader));
    } else if (const Status status = AddLine(row, line, panels); !status) {
      return status.error();
    }
  }
  if (panels.empty()) return Refuse(line + 1, "", "expected a line for each point");
  for (Panel& panel : panels) {
    for (Curve& curve : panel.curves) std::sort(curve.points.begin(), curve.points.end());
  }
  return panels;
}

void AddCurves(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<CurvesOptions>();  // owned by the subcommand's callback
  CLI::App* command = app.add_subcommand("curves", "Draw a table of points as an SVG picture");
  command->add_option("TABLE", options->path, "CSV with the header panel,curve,x,y")->required();
  command->add_option("--svg", options->svg_path, "write the picture to this file")->required();
  command->add_option("--title", options->chart.title, "title of the picture");
  command->add_option("--x", options->chart.x_label, "label of the x axis");
  command->add_option("--y", options->chart.y_label, "label of the y axis");
  command->add_flag("--marks", options->chart.marks, "draw points instead of lines");
  command->add_flag("--log-y", options->chart.log_y, "make the y axis logarithmic");
  command->add_flag("--diagonal", options->chart.diagonal, "draw the line x = y, with equal axes");
  command->callback([options, &exit_code] { exit_code = Draw(*options); });
}

}  // namespace headrace::plan::tool
