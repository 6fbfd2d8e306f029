#include "service/plan/tool/gantt.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ipc/base/check.h"
#include "ipc/base/timeline.h"
#include "service/plan/tool/svg.h"

namespace headrace::plan::tool {
namespace {

constexpr double kWidth = 1100;
constexpr double kLeft = 120;
constexpr double kRight = 30;
constexpr double kTop = 56;
constexpr double kRowHeight = 34;
constexpr double kRowGap = 14;
constexpr double kGlyphWidth = 8;

double DepthOf(std::uint32_t tensor, const plan::Profile& profile) {
  const std::size_t count = profile.tensors.size();
  return count > 1 ? static_cast<double>(tensor) / static_cast<double>(count - 1) : 0;
}

GanttRow BackwardRow(const plan::Profile& profile, const plan::Simulation& simulation) {
  HR_CHECK(simulation.release_s.size() == profile.tensors.size(), simulation.release_s.size());
  GanttRow row{"backward", GanttRow::Kind::kBackward, {}};
  double begin_s = 0;
  for (auto l = static_cast<std::uint32_t>(profile.tensors.size()); l-- > 0;) {
    const double end_s = simulation.release_s[l];
    row.bars.push_back({begin_s, end_s, "", profile.tensors[l].name, DepthOf(l, profile)});
    begin_s = end_s;
  }
  return row;
}

GanttRow ForwardRow(const plan::Profile& profile, const plan::Simulation& simulation) {
  HR_CHECK(simulation.forward_begin_s.size() == profile.tensors.size(),
           simulation.forward_begin_s.size());
  GanttRow row{"forward", GanttRow::Kind::kForward, {}};
  for (std::uint32_t l = 0; l < profile.tensors.size(); ++l) {
    row.bars.push_back({simulation.forward_begin_s[l], simulation.forward_end_s[l], "",
                        profile.tensors[l].name, DepthOf(l, profile)});
  }
  return row;
}

std::uint32_t LowestTensor(const plan::PlannedBlock& block) {
  std::uint32_t lowest = UINT32_MAX;
  for (const plan::TensorRange& range : block.ranges) lowest = std::min(lowest, range.tensor);
  return lowest;
}

// A bar from one moment to another; a wait is drawn between bars only where it lasts.
char Glyph(const GanttRow& row, double begin_s, double end_s) {
  const Bar* longest = nullptr;
  double longest_s = 0;
  bool before = false;
  bool after = false;
  for (const Bar& bar : row.bars) {
    const double shared_s = std::min(bar.end_s, end_s) - std::max(bar.begin_s, begin_s);
    if (shared_s > longest_s) {
      longest = &bar;
      longest_s = shared_s;
    }
    before = before || bar.begin_s < begin_s;
    after = after || bar.end_s > end_s;
  }
  if (longest == nullptr) return before && after ? '.' : ' ';
  switch (row.kind) {
    case GanttRow::Kind::kBackward:
      return '<';
    case GanttRow::Kind::kForward:
      return '>';
    case GanttRow::Kind::kLane:
      break;
  }
  return longest->label.empty() ? '#' : longest->label.back();
}

void DrawRow(const GanttRow& row, double y, double scale, Svg& svg) {
  svg.Text(kLeft - 10, y + kRowHeight / 2 + 4, row.name, Anchor::kEnd);
  const double last_s = row.bars.empty() ? 0 : row.bars.back().end_s;
  const double first_s = row.bars.empty() ? 0 : row.bars.front().begin_s;
  svg.Rectangle(kLeft + first_s * scale, y, (last_s - first_s) * scale, kRowHeight, "#f5f7fa");
  for (const Bar& bar : row.bars) {
    const double x = kLeft + bar.begin_s * scale;
    const double width = (bar.end_s - bar.begin_s) * scale;
    if (width <= 0) continue;
    // A hair of space keeps neighbours apart where there is room for it.
    const double drawn = width > 3 ? width - 0.6 : width;
    svg.Rectangle(x, y, drawn, kRowHeight, ScaleColour(bar.depth), bar.tooltip);
    const double needed = kGlyphWidth * static_cast<double>(bar.label.size()) + 4;
    if (!bar.label.empty() && width >= needed) {
      svg.Text(x + width / 2, y + kRowHeight / 2 + 4, bar.label, Anchor::kMiddle, "#ffffff", 11);
    }
  }
}

}  // namespace

Gantt MakeGantt(const std::string& title, const plan::Profile& profile, const plan::Route& route,
                const plan::Plan& made, const plan::Simulation& simulation) {
  Gantt gantt{
      title, {}, simulation.release_s.front(), simulation.lower_bound_s, simulation.iteration_s};
  gantt.rows.push_back(BackwardRow(profile, simulation));
  for (std::uint32_t lane = 0; lane < route.lanes.size(); ++lane) {
    GanttRow row{route.lanes[lane], GanttRow::Kind::kLane, {}};
    for (const plan::Span& span : simulation.spans) {
      if (span.lane != lane) continue;
      const plan::PlannedBlock& block = made.blocks[span.block];
      row.bars.push_back({span.begin_s, span.end_s, std::to_string(span.block),
                          fmt::format("block {}, {}, {} bytes, {:.3f} to {:.3f} ms", span.block,
                                      route.stages[span.stage].name, block.bytes,
                                      span.begin_s * 1e3, span.end_s * 1e3),
                          DepthOf(LowestTensor(block), profile)});
    }
    gantt.rows.push_back(std::move(row));
  }
  gantt.rows.push_back(ForwardRow(profile, simulation));
  return gantt;
}

std::string GanttSvg(const Gantt& gantt) {
  const double rows_height = static_cast<double>(gantt.rows.size()) * (kRowHeight + kRowGap);
  const double bottom = kTop + rows_height;
  Svg svg(kWidth, bottom + 40);
  const double scale = (kWidth - kLeft - kRight) / std::max(gantt.iteration_s, 1e-12);
  svg.Text(kLeft, 22, gantt.title, Anchor::kStart, Svg::kInk, 15);
  svg.Text(kLeft, 41, "colour: warm = near the input, cool = near the output", Anchor::kStart,
           Svg::kFaint, 11);
  for (const double tick_ms : RoundTicks(gantt.iteration_s * 1e3, 8)) {
    const double x = kLeft + tick_ms / 1e3 * scale;
    svg.Line(x, kTop, x, bottom, Svg::kGrid);
    svg.Text(x, bottom + 16, fmt::format("{:g}", tick_ms), Anchor::kMiddle);
  }
  svg.Text(kLeft - 10, bottom + 16, "ms", Anchor::kEnd);
  double y = kTop + kRowGap / 2;
  for (const GanttRow& row : gantt.rows) {
    DrawRow(row, y, scale, svg);
    y += kRowHeight + kRowGap;
  }
  const double backward_x = kLeft + gantt.backward_end_s * scale;
  svg.Line(backward_x, kTop - 6, backward_x, bottom, Svg::kInk, "4 3");
  const double bound_x = kLeft + gantt.lower_bound_s * scale;
  svg.Line(bound_x, kTop - 6, bound_x, bottom, "#d55e00", "2 2");
  svg.Text(
      kWidth - kRight, bottom + 33,
      fmt::format("dashed: end of backward ({:.3f} ms); dotted: lower bound ({:.3f} ms); "
                  "iteration {:.3f} ms",
                  gantt.backward_end_s * 1e3, gantt.lower_bound_s * 1e3, gantt.iteration_s * 1e3),
      Anchor::kEnd, Svg::kFaint, 11);
  return svg.Finish();
}

std::string GanttText(const Gantt& gantt, int columns) {
  std::size_t name_width = 0;
  for (const GanttRow& row : gantt.rows) name_width = std::max(name_width, row.name.size());
  std::vector<TimelineRow> rows;
  for (const GanttRow& row : gantt.rows) {
    rows.push_back({row.name, [&row](double begin_s, double end_s) {
                      return std::string(1, Glyph(row, begin_s, end_s));
                    }});
  }
  const auto text = [](double seconds) { return fmt::format("{:.3f} ms", seconds * 1e3); };
  return DrawTimeline(rows, name_width + 1, static_cast<std::size_t>(columns),
                      std::max(gantt.iteration_s, 1e-12), text(gantt.iteration_s / 2),
                      text(gantt.iteration_s));
}

}  // namespace headrace::plan::tool
