#include "service/plan/scale_codecs.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "service/plan/coded.h"

namespace headrace::plan {
namespace {

// Encoding that costs more than that is of no use; its scaled bytes must still be a number.
constexpr double kRatioMax = 4096;

double SlopeOf(const Stage& stage) { return StageCost(stage).pieces.back().s_per_byte; }

const Stage* CodedStage(const Route& route) {
  const auto found =
      std::ranges::find_if(route.stages, [](const Stage& stage) { return !stage.coded.empty(); });
  return found == route.stages.end() ? nullptr : &*found;
}

// What a byte costs in that codec, in plain ones: of all rails together, or on the rail where it is
// least, since not every block uses all rails.
double RatioOf(const Stage& stage, const CodedLines& coded, InNodeScale scale) {
  if (scale == InNodeScale::kMean) return SlopeOf(InCodec(stage, &coded)) / SlopeOf(stage);
  double least = kRatioMax;
  for (std::size_t rail = 0; rail < stage.rails.size(); ++rail) {
    const double plain = stage.rails[rail].line.pieces.back().s_per_byte;
    least = std::min(least, coded.lines[rail].pieces.back().s_per_byte / plain);
  }
  return least;
}

// What a byte of each tensor costs on the stage, in plain ones.
std::vector<double> RatiosOf(const Workload& work, const Stage& stage, InNodeScale scale) {
  std::vector<double> ratios(work.size(), 1);
  if (SlopeOf(stage) <= 0) return ratios;
  for (std::size_t l = 0; l < work.size(); ++l) {
    const CodedLines* const coded = FindCoded(stage, work.codecs[l]);
    if (coded == nullptr) continue;
    ratios[l] = RatioOf(stage, *coded, scale);
    if (work.codecs[l].kind == Codec::kPowerSgd) ratios[l] += SentShare(work, l, work.codecs[l]);
    // What is too small to be encoded costs as if it were plain.
    ratios[l] = std::min(ratios[l], scale == InNodeScale::kLeast ? 1.0 : kRatioMax);
  }
  return ratios;
}

PiecewiseCost InScaledBytes(const PiecewiseCost& line, double factor) {
  PiecewiseCost scaled;
  for (const CostPiece& piece : line.pieces) {
    const auto from = static_cast<std::uint64_t>(static_cast<double>(piece.from_bytes) / factor);
    if (!scaled.pieces.empty() && scaled.pieces.back().from_bytes >= from) continue;
    scaled.pieces.push_back({from, piece.startup_s, piece.s_per_byte * factor});
  }
  return scaled;
}

}  // namespace

ScaledProblem ScaleByCodecs(const Workload& work, const Route& route, InNodeScale in_node) {
  ScaledProblem scaled{work, route};
  scaled.work.codecs.clear();
  for (Stage& stage : scaled.route.stages) stage.coded.clear();
  const Stage* const coded = CodedStage(route);
  if (coded == nullptr || work.codecs.empty()) return scaled;
  const std::vector<double> ratios = RatiosOf(work, *coded, in_node);
  std::uint64_t bytes = 0;
  double least_factor = 1;
  for (std::size_t l = 0; l < work.size(); ++l) {
    const std::uint64_t elements_count = work.bytes[l] / work.element_bytes;
    const auto elements = static_cast<double>(elements_count);
    const double whole = std::max(1.0, std::floor(elements * ratios[l]));
    scaled.work.bytes[l] = static_cast<std::uint64_t>(whole) * work.element_bytes;
    bytes += scaled.work.bytes[l];
    scaled.work.prefix_bytes[l] = bytes;
    least_factor = std::min(least_factor, elements / whole);
  }
  const double mean = static_cast<double>(work.total_bytes()) / static_cast<double>(bytes);
  const double factor = in_node == InNodeScale::kMean ? mean : least_factor;
  for (std::size_t stage = 0; stage < route.stages.size(); ++stage) {
    if (!route.stages[stage].coded.empty()) continue;
    for (Rail& rail : scaled.route.stages[stage].rails) {
      rail.line = InScaledBytes(rail.line, factor);
    }
  }
  return scaled;
}

Draft Unscaled(const Draft& draft, const Workload& scaled, const Workload& work) {
  Draft real;
  real.barrier = draft.barrier;
  real.in_flight_max = draft.in_flight_max;
  const std::uint64_t unit = work.element_bytes;
  const auto border = [&](std::uint32_t tensor, std::uint64_t scaled_bytes) {
    if (scaled_bytes >= scaled.bytes[tensor]) return work.bytes[tensor];
    const auto share =
        static_cast<double>(scaled_bytes) / static_cast<double>(scaled.bytes[tensor]);
    const std::uint64_t elements_count = work.bytes[tensor] / unit;
    const auto elements = static_cast<double>(elements_count);
    return static_cast<std::uint64_t>(std::floor(elements * share)) * unit;
  };
  for (const DraftBlock& block : draft.blocks) {
    real.Open(block.kind);
    for (const TensorRange& range : draft.RangesOf(block)) {
      const std::uint64_t begin = border(range.tensor, range.offset_bytes);
      const std::uint64_t end = border(range.tensor, range.offset_bytes + range.bytes);
      real.Append(range.tensor, begin, end - begin);
    }
    real.Close();
  }
  return real;
}

}  // namespace headrace::plan
