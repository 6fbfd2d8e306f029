#include "client/cli/ctl/top/grid.h"

#include <algorithm>
#include <numeric>

namespace headrace::ctl {
namespace {

constexpr std::size_t kGap = 2;

// The width of each column; 0: it gives way.
std::vector<std::size_t> Widths(const std::vector<GridColumn>& columns,
                                const std::vector<GridRow>& rows, std::size_t width) {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    std::size_t widest = WidthOf(columns[i].title);
    for (const GridRow& row : rows) widest = std::max(widest, WidthOf(row.cells[i].text));
    widths.push_back(columns[i].stretches ? std::min(widest, columns[i].least) : widest);
  }
  const auto total = [&widths] {
    std::size_t sum = 0;
    for (const std::size_t one : widths) sum += one > 0 ? one + (sum > 0 ? kGap : 0) : 0;
    return sum;
  };
  while (total() > width) {
    std::size_t least = columns.size();
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const bool may_go = widths[i] > 0 && columns[i].rank > 0;
      if (may_go && (least == columns.size() || columns[i].rank > columns[least].rank)) least = i;
    }
    if (least == columns.size()) break;
    widths[least] = 0;
  }
  for (std::size_t i = 0; i < columns.size(); ++i) {
    if (columns[i].stretches && widths[i] > 0 && total() < width) widths[i] += width - total();
  }
  return widths;
}

// Cells beside each other; what is beyond the terminal is cut.
Line Row(const std::vector<GridColumn>& columns, const std::vector<std::size_t>& widths,
         const std::vector<StyledText>& cells, std::size_t width, bool utf8) {
  Line line;
  std::size_t left = width;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    if (widths[i] == 0 || left == 0) continue;
    if (!line.spans.empty()) {
      line.Add(std::string(std::min(kGap, left), ' '));
      left -= std::min(kGap, left);
    }
    const std::size_t room = std::min(widths[i], left);
    line.Add(PadTo(cells[i].text, room, utf8, columns[i].right), cells[i].style);
    left -= room;
  }
  return line;
}

}  // namespace

std::vector<Line> LayOut(const std::vector<GridColumn>& columns, const std::vector<GridRow>& rows,
                         std::size_t rows_max, std::size_t width, bool utf8) {
  const std::vector<std::size_t> widths = Widths(columns, rows, width);
  std::vector<StyledText> titles;
  for (const GridColumn& column : columns) titles.push_back({column.title, Style::kHead});
  std::vector<Line> lines;
  // One span to the edge, so that a heading is a bar across the terminal.
  lines.emplace_back().Add(PadTo(Row(columns, widths, titles, width, utf8).Text(), width, utf8),
                           Style::kHead);
  for (std::size_t i = 0; i < std::min(rows.size(), rows_max); ++i) {
    Line line = Row(columns, widths, rows[i].cells, width, utf8);
    if (rows[i].selected) {
      line = Line().Add(PadTo(line.Text(), width, utf8), Style::kSelected);
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace headrace::ctl
