// A picture of text: rows over one axis of time, a character for each stretch of it.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

struct TimelineRow {
  std::string name;
  // What stands for the time between two times of the axis: one character.
  std::function<std::string(double from, double to)> mark;
};

// `cells` characters, at least one, stand for the time from 0 to `end`. Names are cut and padded to
// `name_columns` characters. Under the rows stand 0, the end's text, and the middle's where there
// is room for it.
std::string DrawTimeline(const std::vector<TimelineRow>& rows, std::size_t name_columns,
                         std::size_t cells, double end, std::string_view middle_text,
                         std::string_view end_text);

}  // namespace headrace
