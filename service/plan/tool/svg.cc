#include "service/plan/tool/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace headrace::plan::tool {
namespace {

std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char character : text) {
    switch (character) {
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '&':
        escaped += "&amp;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        // Names come from files; control characters have no place in XML.
        escaped += static_cast<unsigned char>(character) < 0x20 ? ' ' : character;
    }
  }
  return escaped;
}

std::string_view AnchorName(Anchor anchor) {
  switch (anchor) {
    case Anchor::kStart:
      return "start";
    case Anchor::kMiddle:
      return "middle";
    case Anchor::kEnd:
      return "end";
  }
  return "start";
}

}  // namespace

Svg::Svg(double width, double height) : width_(width), height_(height) {
  Rectangle(0, 0, width, height, "#ffffff");
}

void Svg::Rectangle(double x, double y, double width, double height, std::string_view fill,
                    std::string_view tooltip) {
  body_ += fmt::format(R"(<rect x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}" fill="{}")", x,
                       y, width, height, fill);
  body_ += tooltip.empty() ? "/>\n" : fmt::format("><title>{}</title></rect>\n", Escaped(tooltip));
}

void Svg::Line(double x1, double y1, double x2, double y2, std::string_view stroke,
               std::string_view dashes) {
  body_ += fmt::format(R"(<line x1="{:.2f}" y1="{:.2f}" x2="{:.2f}" y2="{:.2f}" stroke="{}")", x1,
                       y1, x2, y2, stroke);
  body_ += dashes.empty() ? "/>\n"
                          : fmt::format(R"( stroke-dasharray="{}"/>)"
                                        "\n",
                                        dashes);
}

void Svg::Path(const std::vector<std::pair<double, double>>& points, std::string_view stroke,
               double width, std::string_view dashes) {
  body_ += R"(<polyline points=")";
  for (const auto& [x, y] : points) body_ += fmt::format("{:.2f},{:.2f} ", x, y);
  body_ += fmt::format(R"(" fill="none" stroke="{}" stroke-width="{}" stroke-linejoin="round")",
                       stroke, width);
  if (!dashes.empty()) body_ += fmt::format(R"( stroke-dasharray="{}")", dashes);
  body_ += "/>\n";
}

void Svg::Circle(double x, double y, double radius, std::string_view fill) {
  body_ += fmt::format(R"(<circle cx="{:.2f}" cy="{:.2f}" r="{}" fill="{}" fill-opacity="0.8"/>)"
                       "\n",
                       x, y, radius, fill);
}

void Svg::Text(double x, double y, std::string_view text, Anchor anchor, std::string_view fill,
               double size) {
  body_ += fmt::format(
      R"(<text x="{:.2f}" y="{:.2f}" text-anchor="{}" fill="{}" font-size="{}">{}</text>)"
      "\n",
      x, y, AnchorName(anchor), fill, size, Escaped(text));
}

std::string Svg::Finish() const {
  return fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" )"
      R"(font-family="DejaVu Sans, Verdana, sans-serif">)"
      "\n{2}</svg>\n",
      width_, height_, body_);
}

std::string ScaleColour(double position) {
  // Points of the cividis-like scale the pictures use, warm to cool.
  constexpr std::array<std::array<double, 3>, 4> kPoints = {
      {{230, 159, 0}, {213, 120, 90}, {120, 130, 180}, {0, 114, 178}}};
  const double scaled = std::clamp(position, 0.0, 1.0) * (kPoints.size() - 1);
  const auto index = std::min(static_cast<std::size_t>(scaled), kPoints.size() - 2);
  const double share = scaled - static_cast<double>(index);
  std::array<int, 3> colour{};
  for (std::size_t channel = 0; channel < 3; ++channel) {
    const double low = kPoints[index][channel];
    const double high = kPoints[index + 1][channel];
    colour[channel] = static_cast<int>(std::lround(low + (high - low) * share));
  }
  return fmt::format("#{:02x}{:02x}{:02x}", colour[0], colour[1], colour[2]);
}

std::vector<double> RoundTicks(double most, int count) {
  std::vector<double> ticks;
  if (!(most > 0)) return {0};
  const double rough = most / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = power * 10;
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (power * factor < rough) continue;
    step = power * factor;
    break;
  }
  for (int index = 0; index * step <= most * (1 + 1e-9); ++index) ticks.push_back(index * step);
  return ticks;
}

}  // namespace headrace::plan::tool
