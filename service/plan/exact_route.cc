#include <algorithm>
#include <cmath>
#include <vector>

#include "ipc/base/check.h"
#include "service/plan/exact.h"

namespace headrace::plan {
namespace {

constexpr std::size_t kImprovedMax = 3;  // drafts that get improved
constexpr std::size_t kBlocksMax = 512;  // larger drafts are not improved, only compared
constexpr int kTimetablesMax = 800;      // per improved draft
constexpr double kStartupFactors[] = {0.5, 1.0, 2.0, 4.0, 8.0, 16.0};
constexpr double kPiecesMax = 512;                     // of a plan, where a pipeline wants many
constexpr double kFillingFactors[] = {0.5, 1, 2};      // of the best size for a pipeline
constexpr std::uint64_t kPieces[] = {1, 2, 4, 8, 16};  // that blocks of a pipeline are cut into

struct Candidate {
  Draft draft;
  double iteration_s = 0;
};

std::vector<Part> InputFirst(std::span<const Part> parts) {
  std::vector<Part> sorted(parts.begin(), parts.end());
  std::sort(sorted.begin(), sorted.end(), [](const Part& left, const Part& right) {
    return left.tensor != right.tensor ? left.tensor < right.tensor
                                       : left.offset_bytes < right.offset_bytes;
  });
  return sorted;
}

// Appends the bytes from `begin` to `end` of a row of parts as one block.
void AppendRange(Draft& draft, std::span<const Part> parts, std::uint64_t begin,
                 std::uint64_t end) {
  draft.Open();
  std::uint64_t at = 0;
  for (const Part& part : parts) {
    const std::uint64_t from = std::clamp(begin, at, at + part.bytes);
    const std::uint64_t to = std::clamp(end, at, at + part.bytes);
    draft.Append(part.tensor, part.offset_bytes + (from - at), to - from);
    at += part.bytes;
  }
  draft.Close();
}

// A copy of the draft in which `count` blocks from `at` on are made one, and that one is cut in two
// if `halve`. Parts stand input first in the result, so that of two halves the first is needed
// first.
Draft Rewritten(const Workload& work, const Draft& draft, std::size_t at, std::size_t count,
                bool halve) {
  HR_CHECK(count > 0 && at + count <= draft.blocks.size(), at, count, draft.blocks.size());
  Draft copy;
  copy.in_flight_max = draft.in_flight_max;
  const auto keep = [&](std::size_t begin, std::size_t end) {
    for (std::size_t index = begin; index < end; ++index) {
      AppendRange(copy, draft.PartsOf(draft.blocks[index]), 0, draft.blocks[index].bytes);
    }
  };
  keep(0, at);
  const DraftBlock& first = draft.blocks[at];
  const DraftBlock& last = draft.blocks[at + count - 1];
  const auto whole =
      std::span(draft.parts).subspan(first.parts_begin, last.parts_end - first.parts_begin);
  const std::vector<Part> parts = InputFirst(whole);
  std::uint64_t bytes = 0;
  for (const Part& part : parts) bytes += part.bytes;
  const std::uint64_t border = halve ? bytes / 2 / work.element_bytes * work.element_bytes : bytes;
  AppendRange(copy, parts, 0, border);
  if (halve) AppendRange(copy, parts, border, bytes);
  keep(at + count, draft.blocks.size());
  return copy;
}

// Cuts every block into equal pieces: in a pipeline one lane can work on a piece while the other
// works on the next, and a startup per piece is what that costs.
Draft Pieces(const Workload& work, const Draft& draft, std::uint64_t count) {
  Draft copy;
  for (const DraftBlock& block : draft.blocks) {
    const std::vector<Part> parts = InputFirst(draft.PartsOf(block));
    const std::uint64_t elements = block.bytes / work.element_bytes;
    for (std::uint64_t piece = 0; piece < count; ++piece) {
      const std::uint64_t begin = elements * piece / count * work.element_bytes;
      const std::uint64_t end = elements * (piece + 1) / count * work.element_bytes;
      AppendRange(copy, parts, begin, end);
    }
  }
  return copy;
}

// Cuts every block of more than `bytes_max` into equal pieces of at most that.
Draft Capped(const Workload& work, const Draft& draft, double bytes_max) {
  Draft copy;
  for (const DraftBlock& block : draft.blocks) {
    const std::vector<Part> parts = InputFirst(draft.PartsOf(block));
    const std::uint64_t elements = block.bytes / work.element_bytes;
    const double wanted = std::ceil(static_cast<double>(block.bytes) / bytes_max);
    const auto count =
        static_cast<std::uint64_t>(std::clamp(wanted, 1.0, static_cast<double>(elements)));
    for (std::uint64_t piece = 0; piece < count; ++piece) {
      AppendRange(copy, parts, elements * piece / count * work.element_bytes,
                  elements * (piece + 1) / count * work.element_bytes);
    }
  }
  return copy;
}

// The size of pieces at which a pipeline loses least: what it takes to fill it, at the price of a
// byte in the stages beside the slowest, against a startup of that one for each piece.
double FillingBytes(const Workload& work, const Route& route, const CostPiece& slowest) {
  double beside_s_per_byte = -slowest.s_per_byte;
  for (const Stage& stage : route.stages) {
    beside_s_per_byte += StageLine(stage).pieces.back().s_per_byte;
  }
  const auto bytes = static_cast<double>(work.total_bytes());
  if (!(beside_s_per_byte > 0)) return bytes;
  return std::clamp(std::sqrt(bytes * slowest.startup_s / beside_s_per_byte), bytes / kPiecesMax,
                    bytes);
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
  for (const CostLine& line : {SteadyLine(route), AloneLine(route)}) {
    for (const CostPiece& piece : line.pieces) {
      for (const double factor : kStartupFactors) {
        lines.push_back({0, piece.startup_s * factor, piece.s_per_byte});
      }
    }
  }
  return lines;
}

}  // namespace

// On one serial lane with cost a + b*m the optimum (sweep.h); elsewhere the best of many. Either
// way it is no worse than any other policy, to rounding (1e-12).
Draft Exact(const Workload& work, const Route& route, const DraftOptions& options) {
  if (route.serial()) {
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
  }
  for (auto policy = kPolicies.rbegin(); policy != kPolicies.rend(); ++policy) {
    if (*policy == Policy::kExact || *policy == Policy::kAuto) continue;
    Draft draft = MakeDraft(*policy, work, route, {.bound_s = bound_s});
    add(draft);
    if (!draft.barrier) continue;
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
    if (candidates[index].draft.barrier) continue;
    if (candidates[index].draft.blocks.size() > kBlocksMax) continue;
    Improve(work, route, bound_s, candidates[index]);
  }
  auto best = std::min_element(candidates.begin(), candidates.end(),
                               [](const Candidate& left, const Candidate& right) {
                                 return left.iteration_s < right.iteration_s;
                               });
  const bool simple = best->draft.barrier || best->draft.blocks.size() > kBlocksMax;
  if (!simple) Simplify(work, route, *best);
  return std::move(best->draft);
}

}  // namespace headrace::plan
