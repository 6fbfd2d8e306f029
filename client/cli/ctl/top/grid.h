// Columns that give way on a narrow terminal.
#pragma once

#include <string>
#include <vector>

#include "client/cli/ctl/top/screen.h"

namespace headrace::ctl {

struct GridColumn {
  std::string title;
  bool right = false;
  int rank = 0;  // the highest goes first where the terminal is too narrow; 0 always stays
  bool stretches = false;  // takes what is left; one of them, the last
  std::size_t least = 12;  // of one that stretches: others give way before it has less
};

struct GridRow {
  std::vector<StyledText> cells;  // one a column
  bool selected = false;
};

// The heading and the first `rows_max` rows, at most `width` columns wide.
std::vector<Line> LayOut(const std::vector<GridColumn>& columns, const std::vector<GridRow>& rows,
                         std::size_t rows_max, std::size_t width, bool utf8);

}  // namespace headrace::ctl
