#include "ipc/base/timeline.h"

#include <algorithm>

#include "ipc/base/check.h"

namespace headrace {
namespace {

// Characters of UTF-8, of which only the first byte counts.
std::string NameCell(std::string_view name, std::size_t columns) {
  std::string cell;
  std::size_t width = 0;
  for (const char byte : name) {
    const bool begins = (static_cast<unsigned char>(byte) & 0xc0U) != 0x80U;
    if (begins && width++ == columns) break;
    cell += byte;
  }
  return cell + std::string(columns - std::min(width, columns), ' ');
}

std::string Axis(std::size_t cells, std::string_view middle, std::string_view end) {
  std::string axis(std::max(cells, end.size() + 1), ' ');
  axis[0] = '0';
  axis.replace(axis.size() - end.size(), end.size(), end);
  if (cells < middle.size() + 2 * end.size() + 4) return axis;
  return axis.replace(cells / 2 - middle.size() / 2, middle.size(), middle);
}

}  // namespace

std::string DrawTimeline(const std::vector<TimelineRow>& rows, std::size_t name_columns,
                         std::size_t cells, double end, std::string_view middle_text,
                         std::string_view end_text) {
  HR_CHECK(cells > 0);
  const auto at = [end, cells](std::size_t cell) {
    return end * static_cast<double>(cell) / static_cast<double>(cells);
  };
  std::string text;
  for (const TimelineRow& row : rows) {
    std::string line = NameCell(row.name, name_columns) + " ";
    for (std::size_t cell = 0; cell < cells; ++cell) line += row.mark(at(cell), at(cell + 1));
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text + NameCell("", name_columns) + " " + Axis(cells, middle_text, end_text) + "\n";
}

}  // namespace headrace
