// A Gantt chart of one iteration: backward pass, lanes and forward pass over one time axis, as SVG
// and as a text picture for the terminal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ipc/profile.h"
#include "service/plan/plan.h"
#include "service/plan/route.h"
#include "service/plan/simulate.h"

namespace headrace::plan::tool {

struct Bar {
  double begin_s = 0;
  double end_s = 0;
  std::string label;  // short, may be drawn inside
  std::string tooltip;
  double depth = 0;  // 0 = input layer, 1 = output layer; gives the colour
};

struct GanttRow {
  enum class Kind { kBackward, kLane, kForward };
  std::string name;
  Kind kind = Kind::kLane;
  std::vector<Bar> bars;  // by begin
};

struct Gantt {
  std::string title;
  std::vector<GanttRow> rows;
  double backward_end_s = 0;
  double lower_bound_s = 0;
  double iteration_s = 0;
};

Gantt MakeGantt(const std::string& title, const plan::Profile& profile, const plan::Route& route,
                const plan::Plan& made, const plan::Simulation& simulation);

std::string GanttSvg(const Gantt& gantt);

// `columns`: the width of the time axis in characters. A lane shows the last digit of each block's
// number, the passes show '<' and '>', '.' stands for a wait inside the row, ' ' for nothing.
std::string GanttText(const Gantt& gantt, int columns);

}  // namespace headrace::plan::tool
