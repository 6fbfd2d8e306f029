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
constexpr double kLegendWidth = 130;
constexpr double kBottom = 56;

// The colours of Okabe and Ito, which differ for every kind of colour vision, in the order of
// kPolicies. A policy beyond them gets one that another has, too.
constexpr std::array<std::string_view, 8> kColours = {"#999999", "#000000", "#009e73", "#e69f00",
                                                      "#56b4e9", "#d55e00", "#0072b2", "#cc79a7"};

std::string_view ColourOf(plan::Policy policy) {
  const auto* const found = std::find(plan::kPolicies.begin(), plan::kPolicies.end(), policy);
  return kColours[static_cast<std::size_t>(found - plan::kPolicies.begin()) % kColours.size()];
}

struct Axes {
  double x_low = std::numeric_limits<double>::infinity();
  double x_high = 0;
  double y_high = 0;

  double X(double x, double panel_x) const {
    const double range = std::log(x_high / x_low);
    return panel_x + (range > 0 ? std::log(x / x_low) / range : 0.5) * kPanelWidth;
  }
  double Y(double y) const { return kChartTop + kPanelHeight * (1 - y / y_high); }
};

Axes AxesOf(const Chart& chart) {
  Axes axes;
  for (const Panel& panel : chart.panels) {
    for (const Curve& curve : panel.curves) {
      for (const auto& [x, y] : curve.points) {
        axes.x_low = std::min(axes.x_low, x);
        axes.x_high = std::max(axes.x_high, x);
        axes.y_high = std::max(axes.y_high, y);
      }
    }
  }
  axes.y_high = axes.y_high > 0 ? axes.y_high * 1.05 : 1;
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

void DrawPanel(const Panel& panel, const Axes& axes, double x, bool is_first, Svg& svg) {
  svg.Text(x + kPanelWidth / 2, kChartTop - 12, panel.title, Anchor::kMiddle);
  for (const double tick : RoundTicks(axes.y_high, 6)) {
    svg.Line(x, axes.Y(tick), x + kPanelWidth, axes.Y(tick), Svg::kGrid);
    if (is_first) svg.Text(x - 8, axes.Y(tick) + 4, fmt::format("{:g}", tick), Anchor::kEnd);
  }
  for (const double tick : LogTicks(axes.x_low, axes.x_high)) {
    const double at = axes.X(tick, x);
    svg.Line(at, kChartTop, at, kChartTop + kPanelHeight, Svg::kGrid);
    svg.Text(at, kChartTop + kPanelHeight + 16, fmt::format("{:g}", tick), Anchor::kMiddle,
             Svg::kInk, 10);
  }
  for (const Curve& curve : panel.curves) {
    std::vector<std::pair<double, double>> points;
    for (const auto& [px, py] : curve.points) points.emplace_back(axes.X(px, x), axes.Y(py));
    svg.Path(points, ColourOf(curve.policy), curve.policy == plan::Policy::kExact ? 3 : 1.8);
  }
}

}  // namespace

std::string ChartSvg(const Chart& chart) {
  const Axes axes = AxesOf(chart);
  const auto count = static_cast<double>(chart.panels.size());
  const double panels_width = count * kPanelWidth + (count - 1) * kGap;
  Svg svg(kChartLeft + panels_width + kLegendWidth, kChartTop + kPanelHeight + kBottom);
  svg.Text(kChartLeft, 24, chart.title, Anchor::kStart, Svg::kInk, 15);
  svg.Text(kChartLeft, 42, chart.y_label, Anchor::kStart, Svg::kFaint, 12);
  double x = kChartLeft;
  for (std::size_t index = 0; index < chart.panels.size(); ++index) {
    DrawPanel(chart.panels[index], axes, x, index == 0, svg);
    x += kPanelWidth + kGap;
  }
  svg.Text(kChartLeft + panels_width / 2, kChartTop + kPanelHeight + 40, chart.x_label,
           Anchor::kMiddle);
  if (chart.panels.empty()) return svg.Finish();
  double y = kChartTop + 14;
  const double legend_x = kChartLeft + panels_width + 16;
  for (const Curve& curve : chart.panels.front().curves) {
    svg.Path({{legend_x, y - 4}, {legend_x + 18, y - 4}}, ColourOf(curve.policy),
             curve.policy == plan::Policy::kExact ? 3 : 1.8);
    svg.Text(legend_x + 24, y, plan::Name(curve.policy));
    y += 20;
  }
  return svg.Finish();
}

}  // namespace headrace::plan::tool
