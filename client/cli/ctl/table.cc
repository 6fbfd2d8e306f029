#include "client/cli/ctl/table.h"

#include <algorithm>
#include <cstddef>

#include "ipc/base/check.h"
#include "ipc/base/foreign_text.h"

namespace headrace::ctl {
namespace {

// Columns on the screen: code points, that is bytes that do not continue a UTF-8 sequence.
std::size_t Width(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xc0U) != 0x80U;
  }));
}

}  // namespace

void Table::Add(std::vector<std::string> cells) {
  HR_CHECK(cells.size() == columns_.size(), cells.size(), columns_.size());
  for (std::string& cell : cells) cell = cell.empty() ? "-" : Printable(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::Render(bool with_header) const {
  std::vector<std::vector<std::string>> lines;
  if (with_header) {
    std::vector<std::string>& titles = lines.emplace_back();
    for (const Column& column : columns_) titles.push_back(column.title);
  }
  lines.insert(lines.end(), rows_.begin(), rows_.end());
  std::vector<std::size_t> widths(columns_.size(), 0);
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], Width(line[i]));
  }
  std::string text;
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) {
      const std::string padding(widths[i] - Width(line[i]), ' ');
      if (i > 0) text += "  ";
      text += columns_[i].align == Align::kRight ? padding + line[i] : line[i] + padding;
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  return text;
}

}  // namespace headrace::ctl
