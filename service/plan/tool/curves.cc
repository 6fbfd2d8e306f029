#include "service/plan/tool/curves.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "service/plan/tool/svg.h"

namespace headrace::plan::tool {
namespace {

constexpr double kPanelWidth = 330;
constexpr double kPanelHeight = 260;
constexpr double kChartLeft = 62;
constexpr double kChartTop = 74;
constexpr double kGap = 34;
constexpr double kPanelRowHeight = kPanelHeight + 70;
constexpr double kLegendWidth = 130;
constexpr double kLegendLetter = 7;  // of a name's letter
constexpr double kBottom = 56;
constexpr double kTickDistance = 26;  // numbers that are nearer would run into each other
constexpr double kMarkRadius = 3.2;

// The colours of Okabe and Ito, which differ for every kind of colour vision, in the order of
// kPolicies. Names beyond them get a colour that another has, with dashes.
constexpr std::array<std::string_view, 8> kColours = {"#999999", "#000000", "#009e73", "#e69f00",
                                                      "#56b4e9", "#d55e00", "#0072b2", "#cc79a7"};

struct CurveStyle {
  std::string_view colour;
  double width = 1.8;
  std::string_view dashes;
};

// All names of a chart, in the order in which they appear.
std::vector<std::string> NamesOf(const Chart& chart) {
  std::vector<std::string> names;
  for (const Panel& panel : chart.panels) {
    for (const Curve& curve : panel.curves) {
      if (std::find(names.begin(), names.end(), curve.name) == names.end()) {
        names.push_back(curve.name);
      }
    }
  }
  return names;
}

CurveStyle StyleOf(const std::string& name, const std::vector<std::string>& names) {
  const auto* const policy = std::find(plan::kPolicyNames.begin(), plan::kPolicyNames.end(), name);
  const auto place =
      static_cast<std::size_t>(policy != plan::kPolicyNames.end()
                                   ? policy - plan::kPolicyNames.begin()
                                   : std::find(names.begin(), names.end(), name) - names.begin());
  return {kColours[place % kColours.size()], name == plan::Name(plan::Policy::kExact) ? 3 : 1.8,
          place < kColours.size() ? "" : "6 3"};
}

struct Axes {
  double x_low = std::numeric_limits<double>::infinity();
  double x_high = 0;
  double y_low = 0;  // 0: not logarithmic
  double y_high = 0;
  double top = kChartTop;  // of the panel at hand

  double X(double x, double panel_x) const {
    const double range = std::log(x_high / x_low);
    return panel_x + (range > 0 ? std::log(x / x_low) / range : 0.5) * kPanelWidth;
  }
  double Y(double y) const {
    const double share = y_low > 0 ? std::log(y / y_low) / std::log(y_high / y_low) : y / y_high;
    return top + kPanelHeight * (1 - share);
  }
};

Axes AxesOf(const Chart& chart) {
  Axes axes;
  double y_least = std::numeric_limits<double>::infinity();
  for (const Panel& panel : chart.panels) {
    for (const Curve& curve : panel.curves) {
      for (const auto& [x, y] : curve.points) {
        axes.x_low = std::min(axes.x_low, x);
        axes.x_high = std::max(axes.x_high, x);
        axes.y_high = std::max(axes.y_high, y);
        y_least = std::min(y_least, y);
      }
    }
  }
  axes.y_high = axes.y_high > 0 ? axes.y_high * 1.05 : 1;
  if (chart.log_y && axes.y_high > 0 && std::isfinite(y_least)) axes.y_low = y_least / 1.05;
  if (chart.diagonal) {
    axes.x_low = axes.y_low = std::min(axes.x_low, axes.y_low);
    axes.x_high = axes.y_high = std::max(axes.x_high, axes.y_high);
  }
  return axes;
}

// 1, 2 and 5 times powers of ten between the ends.
std::vector<double> LogTicks(double low, double high) {
  std::vector<double> ticks;
  for (double power = std::pow(10, std::floor(std::log10(low))); power <= high; power *= 10) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double tick = power * factor;
      if (tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9)) ticks.push_back(tick);
    }
  }
  return ticks;
}

std::string TickText(double tick) {
  if (tick >= 1e9) return fmt::format("{:g}G", tick / 1e9);
  if (tick >= 1e6) return fmt::format("{:g}M", tick / 1e6);
  if (tick >= 1e4) return fmt::format("{:g}k", tick / 1e3);
  return fmt::format("{:g}", tick);
}

void DrawGrid(const Panel& panel, const Axes& axes, double x, bool is_first, Svg& svg) {
  svg.Text(x + kPanelWidth / 2, axes.top - 12, panel.title, Anchor::kMiddle);
  const std::vector<double> ticks =
      axes.y_low > 0 ? LogTicks(axes.y_low, axes.y_high) : RoundTicks(axes.y_high, 6);
  for (const double tick : ticks) {
    svg.Line(x, axes.Y(tick), x + kPanelWidth, axes.Y(tick), Svg::kGrid);
    if (is_first) svg.Text(x - 8, axes.Y(tick) + 4, TickText(tick), Anchor::kEnd);
  }
  double last = -kTickDistance;
  for (const double tick : LogTicks(axes.x_low, axes.x_high)) {
    const double at = axes.X(tick, x);
    svg.Line(at, axes.top, at, axes.top + kPanelHeight, Svg::kGrid);
    if (at - last < kTickDistance) continue;
    last = at;
    svg.Text(at, axes.top + kPanelHeight + 16, TickText(tick), Anchor::kMiddle, Svg::kInk, 10);
  }
}

void DrawPanel(const Chart& chart, const Panel& panel, const std::vector<std::string>& names,
               const Axes& axes, double x, Svg& svg) {
  if (chart.diagonal) {
    svg.Line(axes.X(axes.x_low, x), axes.Y(axes.x_low), axes.X(axes.x_high, x), axes.Y(axes.x_high),
             Svg::kFaint, "4 3");
  }
  for (const Curve& curve : panel.curves) {
    const CurveStyle style = StyleOf(curve.name, names);
    std::vector<std::pair<double, double>> points;
    for (const auto& [px, py] : curve.points) points.emplace_back(axes.X(px, x), axes.Y(py));
    if (chart.marks) {
      for (const auto& [px, py] : points) svg.Circle(px, py, kMarkRadius, style.colour);
    } else {
      svg.Path(points, style.colour, style.width, style.dashes);
    }
  }
}

void DrawLegend(const Chart& chart, const std::vector<std::string>& names, double x, Svg& svg) {
  double y = kChartTop + 14;
  for (const std::string& name : names) {
    const CurveStyle style = StyleOf(name, names);
    if (chart.marks) {
      svg.Circle(x + 9, y - 4, kMarkRadius, style.colour);
    } else {
      svg.Path({{x, y - 4}, {x + 18, y - 4}}, style.colour, style.width, style.dashes);
    }
    svg.Text(x + 24, y, name);
    y += 20;
  }
}

}  // namespace

std::string ChartSvg(const Chart& chart) {
  Axes axes = AxesOf(chart);
  const std::vector<std::string> names = NamesOf(chart);
  const std::size_t rows =
      std::max<std::size_t>(1, (chart.panels.size() + kPanelsPerRow - 1) / kPanelsPerRow);
  const auto columns = static_cast<double>(std::min(chart.panels.size(), kPanelsPerRow));
  const double panels_width = columns * kPanelWidth + (columns - 1) * kGap;
  const double panels_bottom =
      kChartTop + kPanelHeight + kPanelRowHeight * static_cast<double>(rows - 1);
  double legend_width = kLegendWidth;
  for (const std::string& name : names) {
    legend_width = std::max(legend_width, 48 + kLegendLetter * static_cast<double>(name.size()));
  }
  Svg svg(kChartLeft + panels_width + legend_width, panels_bottom + kBottom);
  svg.Text(kChartLeft, 24, chart.title, Anchor::kStart, Svg::kInk, 15);
  svg.Text(kChartLeft, 42, chart.y_label, Anchor::kStart, Svg::kFaint, 12);
  for (std::size_t index = 0; index < chart.panels.size(); ++index) {
    const std::size_t column = index % kPanelsPerRow;
    const double x = kChartLeft + static_cast<double>(column) * (kPanelWidth + kGap);
    axes.top = kChartTop + kPanelRowHeight * static_cast<double>(index / kPanelsPerRow);
    DrawGrid(chart.panels[index], axes, x, column == 0, svg);
    DrawPanel(chart, chart.panels[index], names, axes, x, svg);
  }
  svg.Text(kChartLeft + panels_width / 2, panels_bottom + 40, chart.x_label, Anchor::kMiddle);
  DrawLegend(chart, names, kChartLeft + panels_width + 16, svg);
  return svg.Finish();
}

}  // namespace headrace::plan::tool
