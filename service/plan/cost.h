// The cost line of a lane: how long one block of m bytes takes on it, back to back with others.
//
// T(m) = startup_s + s_per_byte * m, with other numbers in other ranges of m where a transport
// switches algorithm. A line may fall where a range begins; nothing here assumes that it rises.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ipc/base/result.h"

namespace headrace::plan {

inline constexpr std::size_t kCostPiecesMax = 64;
// What a line may say. Beyond these no transport is as slow or as quick, and sums and ratios of
// lines might be no numbers.
inline constexpr double kStartupMax = 1e6;  // seconds
inline constexpr double kSecondsPerByteMax = 1;
inline constexpr double kSecondsPerByteLeast = 1e-18;  // of bytes that cost anything

// Holds for blocks of from_bytes bytes and more, up to where the next piece begins.
struct CostPiece {
  std::uint64_t from_bytes = 0;
  double startup_s = 0;
  double s_per_byte = 0;

  double Seconds(double bytes) const { return startup_s + s_per_byte * bytes; }
  friend bool operator==(const CostPiece&, const CostPiece&) = default;
};

struct PiecewiseCost {
  std::vector<CostPiece> pieces;  // ascending from_bytes, the first from 0

  bool affine() const { return pieces.size() == 1; }
  double Seconds(std::uint64_t bytes) const;
  // The most bytes a block may have and still end within `seconds`; 0 when not even the startup
  // fits, infinity when bytes cost nothing. Not rounded to whole bytes.
  double BytesWithin(double seconds) const;
  // What an almost empty block costs.
  double startup_s() const { return pieces.front().startup_s; }

  friend bool operator==(const PiecewiseCost&, const PiecewiseCost&) = default;
};

PiecewiseCost Affine(double startup_s, double s_per_byte);
// The same of what was measured, whatever it is: so far within the limits above that a codec's line
// is, too. A few bytes that waited for a peer make any rate.
PiecewiseCost MeasuredLine(double startup_s, double s_per_byte);

// Numbers within the limits above, pieces in ascending order from 0, at most kCostPiecesMax.
Status CheckPiecewiseCost(const PiecewiseCost& line);

// The line of two transfers one after the other, and the line of the slower of two.
PiecewiseCost Sum(const PiecewiseCost& left, const PiecewiseCost& right);
PiecewiseCost Slower(const PiecewiseCost& left, const PiecewiseCost& right);

// A straight line below `line` for every block of 1 to bytes_max bytes, with a startup that is not
// negative: whatever the number of blocks, m bytes cost at least startup_s + s_per_byte * m.
// One is returned per slope worth trying; the best bound is the largest that any of them gives.
std::vector<CostPiece> LinesBelow(const PiecewiseCost& line, std::uint64_t bytes_max);

}  // namespace headrace::plan
