#include "client/cli/ctl/plan_gantt.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "client/cli/ctl/units.h"
#include "ipc/base/foreign_text.h"
#include "ipc/base/timeline.h"

namespace headrace::ctl {
namespace {

constexpr std::size_t kNameColumns = 18;

struct Stretch {
  TimeNs begin_ns = 0;
  TimeNs end_ns = 0;  // not after the begin: nothing

  bool Covers(TimeNs from_ns, TimeNs to_ns) const {
    // The middle of the cell counts, but what is shorter than a cell is shown where it begins.
    const TimeNs middle_ns = (from_ns + to_ns) / 2;
    const bool is_inside = begin_ns <= middle_ns && middle_ns < end_ns;
    return is_inside || (begin_ns < end_ns && begin_ns >= from_ns && begin_ns < to_ns);
  }
};

struct Row {
  std::string name;
  Stretch predicted;
  Stretch measured;
  Stretch ready;  // gradients were there, and the block was not on its lane
};

struct Marks {
  const char* both;
  const char* predicted;
  const char* measured;
  const char* ready;
};
constexpr Marks kBlocks = {"█", "▀", "▄", "·"};
constexpr Marks kAscii = {"=", "-", "_", "."};

const char* Mark(const Row& row, TimeNs from_ns, TimeNs to_ns, const Marks& marks) {
  const bool predicted = row.predicted.Covers(from_ns, to_ns);
  const bool measured = row.measured.Covers(from_ns, to_ns);
  if (predicted && measured) return marks.both;
  if (predicted) return marks.predicted;
  if (measured) return marks.measured;
  return row.ready.Covers(from_ns, to_ns) ? marks.ready : " ";
}

std::vector<Row> RowsOf(const Snapshot& snapshot, const ipc::PlanRow& plan) {
  std::vector<Row> rows;
  const TimeNs measured_begin_ns = plan.measured_ns > 0 ? plan.backward_ns : 0;
  rows.push_back({"backward",
                  {0, plan.predicted_backward_ns},
                  {0, plan.measured_ns > 0 ? plan.backward_ns : 0},
                  {}});
  for (const ipc::PlanBlockRow& block : snapshot.plan_blocks) {
    if (block.job_id != plan.job_id || rows.size() > kGanttBlocksMax) continue;
    const bool moved = block.end_ns > 0;
    rows.push_back({fmt::format("{:>3} {}", block.index + 1, Printable(ipc::GetText(block.tensor))),
                    {block.predicted_begin_ns, block.predicted_end_ns},
                    {moved ? block.begin_ns : 0, moved ? block.end_ns : 0},
                    {moved ? block.ready_ns : 0, moved ? block.begin_ns : 0}});
  }
  // Where in the forward pass it waited is not known: its bar is as long as both.
  rows.push_back({"forward",
                  {plan.predicted_backward_ns, plan.predicted_ns},
                  {measured_begin_ns, plan.measured_ns},
                  {}});
  return rows;
}

}  // namespace

std::string PlanGantt(const Snapshot& snapshot, const ipc::PlanRow& plan, std::size_t columns,
                      bool utf8) {
  const std::vector<Row> rows = RowsOf(snapshot, plan);
  TimeNs end_ns = 1;
  for (const Row& row : rows)
    end_ns = std::max({end_ns, row.predicted.end_ns, row.measured.end_ns});
  const Marks& marks = utf8 ? kBlocks : kAscii;
  const std::size_t cells = std::max<std::size_t>(columns, kNameColumns + 32) - kNameColumns - 1;
  std::vector<TimelineRow> lines;
  for (const Row& row : rows) {
    lines.push_back({row.name, [&row, &marks](double from, double to) {
                       return Mark(row, static_cast<TimeNs>(from), static_cast<TimeNs>(to), marks);
                     }});
  }
  std::string text = DrawTimeline(lines, kNameColumns, cells, static_cast<double>(end_ns),
                                  FormatMilliseconds(end_ns / 2), FormatMilliseconds(end_ns));
  text += fmt::format("{} predicted  {} measured  {} both  {} ready, and waiting for the lane\n",
                      marks.predicted, marks.measured, marks.both, marks.ready);
  return text;
}

}  // namespace headrace::ctl
