#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "ipc/base/check.h"
#include "service/plan/exact.h"
#include "service/plan/reshape.h"

namespace headrace::plan {
namespace {

constexpr std::size_t kImprovedMax = 3;  // drafts that get improved
constexpr std::size_t kBlocksMax = 512;  // larger drafts are not improved, only compared
constexpr int kTimetablesMax = 800;      // per improved draft
constexpr double kStartupFactors[] = {0.5, 1.0, 2.0, 4.0, 8.0, 16.0};
constexpr double kPiecesMax = 512;                     // of a plan, where a pipeline wants many
constexpr double kFillingFactors[] = {0.5, 1, 2};      // of the best size for a pipeline
constexpr double kFirstFactors[] = {0.25, 1, 4};       // of the size of first pieces that grow
constexpr std::uint64_t kPieces[] = {1, 2, 4, 8, 16};  // that blocks of a pipeline are cut into

struct Candidate {
  Draft draft;
  double iteration_s = 0;
};

// The size of pieces at which a pipeline loses least: what it takes to fill it, at the price of a
// byte in the stages beside the slowest, against a startup of that one for each piece.
double FillingBytes(const Workload& work, const Route& route, const CostPiece& slowest) {
  double beside_s_per_byte = -slowest.s_per_byte;
  for (const Stage& stage : route.stages) {
    beside_s_per_byte += StageCost(stage).pieces.back().s_per_byte;
  }
  const auto bytes = static_cast<double>(work.total_bytes());
  if (!(beside_s_per_byte > 0)) return bytes;
  return std::clamp(std::sqrt(bytes * slowest.startup_s / beside_s_per_byte), bytes / kPiecesMax,
                    bytes);
}

// Pieces that grow, of several first sizes: where filling the pipeline costs as much as a startup,
// and around.
void AddGraded(const Workload& work, const Route& route, const Draft& draft,
               const CostPiece& slowest, const std::function<void(Draft)>& add) {
  CostPiece before = StageCost(route.stages.front()).pieces.back();
  before.from_bytes = 0;
  const CostPiece after = StageCost(route.stages.back()).pieces.back();
  if (!(before.s_per_byte > 0) || !(slowest.s_per_byte > before.s_per_byte)) return;
  const double even = std::max(slowest.startup_s, before.startup_s) / before.s_per_byte;
  for (const double factor : kFirstFactors) {
    add(Graded(work, draft, {before, slowest}, even * factor, false));
    const bool follows = route.stages.size() > 2 && after.s_per_byte > 0;
    if (follows) add(Graded(work, draft, {before, slowest}, even * factor, true));
  }
}

// Makes one of neighbours wherever that begins no later and the iteration takes no longer for it: a
// plan of few blocks costs its nodes less. What begins early leaves room for delays.
void Simplify(const Workload& work, const Route& route, Candidate& best) {
  Timetable before = MakeTimetable(work, route, best.draft);
  for (std::size_t at = 0; at + 1 < best.draft.blocks.size();) {
    Draft draft = Rewritten(work, best.draft, at, 2, false);
    Timetable table = MakeTimetable(work, route, draft);
    const bool as_good = table.iteration_s <= best.iteration_s;
    if (as_good && table.begin_s[at] <= before.begin_s[at]) {
      best = {std::move(draft), table.iteration_s};
      before = std::move(table);
    } else {
      ++at;
    }
  }
}

// Merges and halves blocks one at a time, keeping what makes the iteration shorter, until nothing
// does.
void Improve(const Workload& work, const Route& route, double bound_s, Candidate& best) {
  int timetables = 0;
  bool improved = true;
  while (improved && timetables < kTimetablesMax && best.iteration_s > bound_s * (1 + 1e-12)) {
    improved = false;
    for (std::size_t at = 0; at < best.draft.blocks.size(); ++at) {
      for (const bool merge : {true, false}) {
        if (merge && at + 1 >= best.draft.blocks.size()) continue;
        if (!merge && best.draft.blocks[at].bytes < 2 * work.element_bytes) continue;
        Draft draft = Rewritten(work, best.draft, at, merge ? 2 : 1, !merge);
        const double seconds = MakeTimetable(work, route, draft).iteration_s;
        ++timetables;
        if (seconds >= best.iteration_s) continue;
        best = {std::move(draft), seconds};
        improved = true;
        break;
      }
      if (timetables >= kTimetablesMax) break;
    }
  }
}

// Straight lines that may stand for the route: what blocks cost among many and alone, with their
// startups made smaller and larger, as a pipeline hides some and bent lines have several.
std::vector<CostPiece> StandIns(const Route& route) {
  std::vector<CostPiece> lines;
  for (const PiecewiseCost& line : {SteadyLine(route), AloneLine(route)}) {
    for (const CostPiece& piece : line.pieces) {
      for (const double factor : kStartupFactors) {
        lines.push_back({0, piece.startup_s * factor, piece.s_per_byte});
      }
    }
  }
  return lines;
}

}  // namespace

const PolicyTraits kExactTraits = {
    .barrier = false, .sizes_by_cost = true, .halves = false, .from_others = true};

// On one serial lane with cost a + b*m the optimum (sweep.h); elsewhere, and where a block may be
// several transfers for where its tensors lie, the best of many. Either way it is no worse than any
// other policy, to rounding (1e-12).
Draft Exact(const Workload& work, const Route& route, const DraftOptions& options) {
  if (route.serial() && route.stages[0].offsets_bytes.empty()) {
    const CostPiece& line = route.stages[0].rails[0].line.pieces[0];
    LaneOptimum optimum = ExactOnLane(work, line, options.bound_s);
    // Rarely, and by less than the time of a few elements, the rounding to elements leaves room for
    // another policy to be better. Then it is taken.
    if (optimum.lossless) return std::move(optimum.draft);
  }
  return ExactOnRoute(work, route, options.bound_s);
}

Draft ExactOnRoute(const Workload& work, const Route& route, double bound_s) {
  std::vector<Candidate> candidates;
  const auto add = [&](Draft draft) {
    const double seconds = MakeTimetable(work, route, draft).iteration_s;
    candidates.push_back({std::move(draft), seconds});
  };
  for (const CostPiece& line : StandIns(route)) {
    const double line_bound_s = work.backward_s() + work.forward_s();
    const Draft draft = ExactOnLane(work, line, line_bound_s).draft;
    for (const std::uint64_t count : kPieces) {
      if (count == 1 || route.stages.size() > 1) add(Pieces(work, draft, count));
    }
    if (route.stages.size() == 1) continue;
    const double filling = FillingBytes(work, route, line);
    for (const double factor : kFillingFactors) add(Capped(work, draft, filling * factor));
    AddGraded(work, route, draft, line, add);
  }
  for (auto policy = kPolicies.rbegin(); policy != kPolicies.rend(); ++policy) {
    const PolicyTraits& traits = TraitsOf(*policy);
    // The blocks of `exact` are whole ones.
    if (traits.from_others || (traits.halves && route.halves)) continue;
    Draft draft = MakeDraft(*policy, work, route, {.bound_s = bound_s});
    // Without the barrier the same blocks can only be earlier in use.
    draft.barrier = false;
    add(std::move(draft));
  }
  HR_CHECK(!candidates.empty());
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& left, const Candidate& right) {
                     return left.iteration_s < right.iteration_s;
                   });
  for (std::size_t index = 0; index < std::min(kImprovedMax, candidates.size()); ++index) {
    if (candidates[index].draft.blocks.size() > kBlocksMax) continue;
    Improve(work, route, bound_s, candidates[index]);
  }
  auto best = std::min_element(candidates.begin(), candidates.end(),
                               [](const Candidate& left, const Candidate& right) {
                                 return left.iteration_s < right.iteration_s;
                               });
  if (best->draft.blocks.size() <= kBlocksMax) Simplify(work, route, *best);
  return std::move(best->draft);
}

}  // namespace headrace::plan
