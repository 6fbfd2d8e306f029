#include "service/plan/cost.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "ipc/base/check.h"
#include "service/plan/infinity.h"

namespace headrace::plan {
namespace {

const CostPiece& PieceAt(const PiecewiseCost& line, std::uint64_t bytes) {
  const auto after = std::upper_bound(
      line.pieces.begin(), line.pieces.end(), bytes,
      [](std::uint64_t value, const CostPiece& piece) { return value < piece.from_bytes; });
  HR_CHECK(after != line.pieces.begin(), bytes, line.pieces.size());
  return *(after - 1);
}

std::vector<std::uint64_t> Borders(const PiecewiseCost& left, const PiecewiseCost& right) {
  std::vector<std::uint64_t> borders;
  for (const CostPiece& piece : left.pieces) borders.push_back(piece.from_bytes);
  for (const CostPiece& piece : right.pieces) borders.push_back(piece.from_bytes);
  std::sort(borders.begin(), borders.end());
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  return borders;
}

void Append(PiecewiseCost& line, std::uint64_t from_bytes, const CostPiece& piece) {
  if (!line.pieces.empty() && line.pieces.back().startup_s == piece.startup_s &&
      line.pieces.back().s_per_byte == piece.s_per_byte) {
    return;
  }
  line.pieces.push_back({from_bytes, piece.startup_s, piece.s_per_byte});
}

bool IsStartup(double seconds) { return seconds >= 0 && seconds <= kStartupMax; }

bool IsSecondsPerByte(double seconds) {
  return seconds == 0 || (seconds >= kSecondsPerByteLeast && seconds <= kSecondsPerByteMax);
}

// The least of T(m) - slope * m over 1..bytes_max. T is straight inside a piece, so the least value
// stands at an end of one.
double LeastStartup(const PiecewiseCost& line, double slope, std::uint64_t bytes_max) {
  double least = kInfinity;
  for (std::size_t index = 0; index < line.pieces.size(); ++index) {
    const CostPiece& piece = line.pieces[index];
    const std::uint64_t first = std::max<std::uint64_t>(piece.from_bytes, 1);
    if (first > bytes_max) break;
    const bool is_last = index + 1 == line.pieces.size();
    const std::uint64_t last =
        is_last ? bytes_max : std::min(bytes_max, line.pieces[index + 1].from_bytes);
    for (const std::uint64_t at : {first, std::max(first, last)}) {
      const auto bytes = static_cast<double>(at);
      least = std::min(least, piece.Seconds(bytes) - slope * bytes);
    }
  }
  return least;
}

// The steepest slope of a line through the origin that stays below.
double LeastRatio(const PiecewiseCost& line, std::uint64_t bytes_max) {
  HR_CHECK(!line.pieces.empty() && bytes_max > 0, line.pieces.size(), bytes_max);
  double least = kInfinity;
  for (std::size_t index = 0; index < line.pieces.size(); ++index) {
    const CostPiece& piece = line.pieces[index];
    if (std::max<std::uint64_t>(piece.from_bytes, 1) > bytes_max) break;
    const bool is_last = index + 1 == line.pieces.size();
    const std::uint64_t last =
        is_last ? bytes_max : std::min(bytes_max, line.pieces[index + 1].from_bytes);
    least = std::min(least, piece.Seconds(static_cast<double>(last)) / static_cast<double>(last));
  }
  return least;
}

}  // namespace

double PiecewiseCost::Seconds(std::uint64_t bytes) const {
  const CostPiece& piece = affine() ? pieces.front() : PieceAt(*this, bytes);
  return piece.Seconds(static_cast<double>(bytes));
}

double PiecewiseCost::BytesWithin(double seconds) const {
  double end = kInfinity;  // where the piece at hand ends
  for (std::size_t index = pieces.size(); index-- > 0;) {
    const CostPiece& piece = pieces[index];
    const auto from = static_cast<double>(piece.from_bytes);
    if (piece.Seconds(from) <= seconds) {
      if (piece.s_per_byte <= 0) return end;
      return std::min(end, std::max(from, (seconds - piece.startup_s) / piece.s_per_byte));
    }
    end = from;
  }
  return 0;
}

PiecewiseCost Affine(double startup_s, double s_per_byte) { return {{{0, startup_s, s_per_byte}}}; }

PiecewiseCost MeasuredLine(double startup_s, double s_per_byte) {
  // A codec's line has up to ten times as much, and a thousandth at the least.
  constexpr double kMore = 10;
  constexpr double kLess = 1e3;
  const double rate =
      std::clamp(s_per_byte, kLess * kSecondsPerByteLeast, kSecondsPerByteMax / kMore);
  return Affine(std::clamp(startup_s, 0.0, kStartupMax / kMore), s_per_byte == 0 ? 0 : rate);
}

Status CheckPiecewiseCost(const PiecewiseCost& line) {
  const auto refuse = [](const std::string& what) {
    return Error(Code::kInvalidArgument, "cost line: " + what);
  };
  if (line.pieces.empty()) return refuse("it has no pieces");
  if (line.pieces.size() > kCostPiecesMax) {
    return refuse("it has more than " + std::to_string(kCostPiecesMax) + " pieces");
  }
  if (line.pieces.front().from_bytes != 0) return refuse("the first piece does not begin at 0");
  for (std::size_t index = 0; index < line.pieces.size(); ++index) {
    const CostPiece& piece = line.pieces[index];
    if (index > 0 && piece.from_bytes <= line.pieces[index - 1].from_bytes) {
      return refuse("piece " + std::to_string(index) + " does not begin after the one before it");
    }
    if (!IsStartup(piece.startup_s)) {
      return refuse("startup of piece " + std::to_string(index) + " is not between 0 and " +
                    std::to_string(kStartupMax) + " s");
    }
    if (!IsSecondsPerByte(piece.s_per_byte)) {
      return refuse("seconds per byte of piece " + std::to_string(index) +
                    " are neither 0 nor between 1e-18 and 1");
    }
  }
  return {};
}

PiecewiseCost Sum(const PiecewiseCost& left, const PiecewiseCost& right) {
  PiecewiseCost sum;
  for (const std::uint64_t border : Borders(left, right)) {
    const CostPiece& l = PieceAt(left, border);
    const CostPiece& r = PieceAt(right, border);
    Append(sum, border, {border, l.startup_s + r.startup_s, l.s_per_byte + r.s_per_byte});
  }
  return sum;
}

PiecewiseCost Slower(const PiecewiseCost& left, const PiecewiseCost& right) {
  PiecewiseCost slower;
  const std::vector<std::uint64_t> borders = Borders(left, right);
  for (std::size_t index = 0; index < borders.size(); ++index) {
    const auto from = static_cast<double>(borders[index]);
    const double end =
        index + 1 < borders.size() ? static_cast<double>(borders[index + 1]) : kInfinity;
    const CostPiece* above = &PieceAt(left, borders[index]);
    const CostPiece* below = &PieceAt(right, borders[index]);
    const bool tie = above->Seconds(from) == below->Seconds(from);
    if (tie ? below->s_per_byte > above->s_per_byte : below->Seconds(from) > above->Seconds(from)) {
      std::swap(above, below);
    }
    Append(slower, borders[index], *above);
    if (below->s_per_byte <= above->s_per_byte) continue;
    const double cross =
        std::ceil((above->startup_s - below->startup_s) / (below->s_per_byte - above->s_per_byte));
    if (cross > from && cross < end && cross < 0x1p62) {
      Append(slower, static_cast<std::uint64_t>(cross), *below);
    }
  }
  return slower;
}

std::vector<CostPiece> LinesBelow(const PiecewiseCost& line, std::uint64_t bytes_max) {
  std::vector<CostPiece> below;
  for (const CostPiece& piece : line.pieces) {
    const double startup_s = LeastStartup(line, piece.s_per_byte, bytes_max);
    if (startup_s >= 0 && std::isfinite(startup_s)) {
      below.push_back({0, startup_s, piece.s_per_byte});
    }
  }
  below.push_back({0, 0, LeastRatio(line, bytes_max)});
  return below;
}

}  // namespace headrace::plan
