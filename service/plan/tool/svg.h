// Text of SVG pictures: shapes with coordinates in pixels, and what all our pictures look like.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace::plan::tool {

enum class Anchor { kStart, kMiddle, kEnd };

// A picture under construction. Shapes are painted in the order of the calls.
class Svg {
 public:
  Svg(double width, double height);

  void Rectangle(double x, double y, double width, double height, std::string_view fill,
                 std::string_view tooltip = "");
  void Line(double x1, double y1, double x2, double y2, std::string_view stroke,
            std::string_view dashes = "");
  void Path(const std::vector<std::pair<double, double>>& points, std::string_view stroke,
            double width, std::string_view dashes = "");
  void Circle(double x, double y, double radius, std::string_view fill);
  void Text(double x, double y, std::string_view text, Anchor anchor = Anchor::kStart,
            std::string_view fill = kInk, double size = 12);

  std::string Finish() const;

  static constexpr std::string_view kInk = "#1f2933";
  static constexpr std::string_view kFaint = "#9aa5b1";
  static constexpr std::string_view kGrid = "#e4e7eb";

 private:
  double width_;
  double height_;
  std::string body_;
};

// A colour on a scale from warm (0) to cool (1) that stays readable for the colour-blind.
std::string ScaleColour(double position);

// Numbers on an axis from 0 to `most`: a round step, about `count` of them.
std::vector<double> RoundTicks(double most, int count);

}  // namespace headrace::plan::tool
