// A line chart with one panel per profile and one curve per policy, as SVG.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "service/plan/plan.h"

namespace headrace::plan::tool {

struct Curve {
  plan::Policy policy = plan::Policy::kExact;
  std::vector<std::pair<double, double>> points;  // by rising x, both positive
};

struct Panel {
  std::string title;
  std::vector<Curve> curves;
};

struct Chart {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<Panel> panels;
};

// The x axis is logarithmic, the y axis starts at 0; all panels share both.
std::string ChartSvg(const Chart& chart);

}  // namespace headrace::plan::tool
