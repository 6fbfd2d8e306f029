// What stands on a terminal: lines of styled text, cut to its size. Pure; terminal.h shows it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::ctl {

enum class Style {
  kPlain,
  kTitle,     // the first line
  kHead,      // of a section
  kFaint,     // what one need not read
  kGood,      // a bar with room
  kWarning,   // a bar that is nearly full, a job that stands still
  kBad,       // failed, gone
  kSelected,  // the line that keys act on
};

struct StyledText {
  std::string text;
  Style style = Style::kPlain;
};

struct Line {
  std::vector<StyledText> spans{};

  Line& Add(std::string text, Style style = Style::kPlain);
  std::string Text() const;
};

// At most `height` lines of at most `width` columns.
struct Screen {
  int width = 0;
  int height = 0;
  std::vector<Line> lines;

  // All of it, without styles and without blanks at the ends of lines.
  std::string Text() const;
};

// Columns on the terminal, one for each code point.
std::size_t WidthOf(std::string_view text);
// The first `width` columns of `text`; where something was cut, the last of them is "…" or "~".
std::string CutTo(std::string_view text, std::size_t width, bool utf8);
// Cut, or filled up with blanks, to exactly `width`.
std::string PadTo(std::string_view text, std::size_t width, bool utf8, bool right = false);

// A bar of `width` cells, `share` (0 to 1) of it full.
std::string Bar(double share, std::size_t width, bool utf8);

}  // namespace headrace::ctl
