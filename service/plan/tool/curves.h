// A chart with one panel per profile and one curve per policy, or whatever else has a name, as SVG.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "service/plan/plan.h"

namespace headrace::plan::tool {

struct Curve {
  std::string name;                               // a policy's has that policy's colour
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
  bool marks = false;     // points, not lines
  bool log_y = false;     // else the y axis starts at 0
  bool diagonal = false;  // the line x = y
};

// The x axis is logarithmic; all panels share both axes. Panels stand in rows of kPanelsPerRow.
inline constexpr std::size_t kPanelsPerRow = 3;
std::string ChartSvg(const Chart& chart);

}  // namespace headrace::plan::tool
