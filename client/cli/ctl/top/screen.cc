#include "client/cli/ctl/top/screen.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace headrace::ctl {
namespace {

bool BeginsCharacter(char byte) { return (static_cast<unsigned char>(byte) & 0xc0U) != 0x80U; }

// The bytes of the first `width` characters.
std::size_t BytesOf(std::string_view text, std::size_t width) {
  std::size_t at = 0;
  for (std::size_t seen = 0; at < text.size(); ++at) {
    if (BeginsCharacter(text[at]) && seen++ == width) break;
  }
  return at;
}

}  // namespace

Line& Line::Add(std::string text, Style style) {
  if (!text.empty()) spans.push_back({std::move(text), style});
  return *this;
}

std::string Line::Text() const {
  std::string text;
  for (const StyledText& span : spans) text += span.text;
  return text;
}

std::string Screen::Text() const {
  std::string text;
  for (const Line& line : lines) {
    text += line.Text();
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  return text;
}

std::size_t WidthOf(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), BeginsCharacter));
}

std::string CutTo(std::string_view text, std::size_t width, bool utf8) {
  if (WidthOf(text) <= width) return std::string(text);
  if (width == 0) return "";
  return std::string(text.substr(0, BytesOf(text, width - 1))) + (utf8 ? "…" : "~");
}

std::string PadTo(std::string_view text, std::size_t width, bool utf8, bool right) {
  std::string cut = CutTo(text, width, utf8);
  const std::string blanks(width - WidthOf(cut), ' ');
  return right ? blanks + cut : cut + blanks;
}

std::string Bar(double share, std::size_t width, bool utf8) {
  // Eighths of a cell, so that a short bar still moves.
  constexpr std::array kEighths = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const double clamped = std::isfinite(share) ? std::clamp(share, 0.0, 1.0) : 0;
  const auto eighths =
      static_cast<std::size_t>(std::lround(clamped * static_cast<double>(width) * 8));
  std::string bar;
  if (!utf8) {
    const std::size_t full = (eighths + 4) / 8;
    return std::string(full, '#') + std::string(width - full, '.');
  }
  for (std::size_t i = 0; i < eighths / 8; ++i) bar += "█";
  bar += kEighths[eighths % 8];
  const std::size_t used = eighths / 8 + (eighths % 8 != 0 ? 1 : 0);
  for (std::size_t i = used; i < width; ++i) bar += "·";
  return bar;
}

}  // namespace headrace::ctl
