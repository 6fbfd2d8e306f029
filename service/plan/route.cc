#include "service/plan/route.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "ipc/base/check.h"

namespace headrace::plan {
namespace {

Error Refuse(const std::string& what) { return {Code::kInvalidArgument, "route: " + what}; }

double StartupOf(const Rail& rail) { return rail.line.pieces.front().startup_s; }
double SlopeOf(const Rail& rail) { return rail.line.pieces.front().s_per_byte; }

constexpr std::uint64_t kRestSteps = 32;  // more than rails

// Rails by rising startup: the order in which a growing block starts to use them.
std::vector<std::size_t> ByStartup(const Stage& stage) {
  std::vector<std::size_t> order(stage.rails.size());
  for (std::size_t index = 0; index < order.size(); ++index) order[index] = index;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t left, std::size_t right) {
    return StartupOf(stage.rails[left]) < StartupOf(stage.rails[right]);
  });
  return order;
}

// When the first `used` rails end together. Dropping lanes whose startup is not below tau and
// solving again comes to the same as adding lanes by rising startup while theirs is below tau.
double TogetherSeconds(const Stage& stage, double bytes, std::vector<std::size_t>& used) {
  double tau = 0;
  double inverse = 0;
  double ahead = 0;
  std::size_t count = 0;
  for (const std::size_t index : used) {
    const Rail& rail = stage.rails[index];
    if (count > 0 && StartupOf(rail) >= tau) break;
    inverse += 1 / SlopeOf(rail);
    ahead += StartupOf(rail) / SlopeOf(rail);
    tau = (bytes + ahead) / inverse;
    ++count;
  }
  used.resize(count);
  return tau;
}

// Gives out what rounding down to elements left over, one element at a time, each to the rail that
// would end it first. Where a startup is so long that rounding its sum with a share's time leaves
// far more over, it is given out in larger steps.
void AssignRest(const Stage& stage, const std::vector<std::size_t>& used, std::uint64_t rest,
                std::uint64_t element_bytes, std::vector<std::uint64_t>& shares) {
  HR_CHECK(!used.empty() && element_bytes > 0, used.size(), element_bytes);
  while (rest > 0) {
    const std::uint64_t many = rest / (kRestSteps * element_bytes) * element_bytes;
    const std::uint64_t step = std::min(rest, std::max(many, element_bytes));
    std::size_t best = used.front();
    double best_s = 0;
    for (std::size_t rank = 0; rank < used.size(); ++rank) {
      const std::size_t index = used[rank];
      const double end_s = stage.rails[index].line.Seconds(shares[index] + step);
      if (rank == 0 || end_s < best_s) {
        best = index;
        best_s = end_s;
      }
    }
    shares[best] += step;
    rest -= step;
  }
}

Status CheckCoded(const Stage& stage) {
  if (stage.coded.size() > kCodecCostsMax) return Refuse(stage.name + " has too many codecs");
  for (const CodedLines& coded : stage.coded) {
    if (!IsCodecCost(coded.cost) || coded.lines.size() != stage.rails.size()) {
      return Refuse(stage.name + " has invalid costs of a codec");
    }
    for (const PiecewiseCost& line : coded.lines) {
      if (Status status = CheckPiecewiseCost(line); !status)
        return status.error().Within(stage.name);
      // Shares of several rails are divided by what a byte costs there.
      if (stage.rails.size() > 1 && line.pieces.back().s_per_byte <= 0) {
        return Refuse(stage.name + " splits blocks over a lane where a codec's bytes cost nothing");
      }
    }
  }
  return {};
}

}  // namespace

bool Route::serial() const {
  return stages.size() == 1 && stages.front().rails.size() == 1 &&
         stages.front().rails.front().line.affine();
}

Route AllReduceRoute(const PiecewiseCost& line) {
  return {{"network"}, {{"all-reduce", {{0, line}}}}};
}

Route ParameterServerRoute(const PiecewiseCost& push, const PiecewiseCost& pull,
                           Placement placement) {
  if (placement == Placement::kColocated) {
    return {{"network"},
            {{"push", {{0, push}}, Collective::kReduceScatter},
             {"pull", {{0, pull}}, Collective::kAllGather}}};
  }
  return {{"push", "pull"},
          {{"push", {{0, push}}, Collective::kReduceScatter},
           {"pull", {{1, pull}}, Collective::kAllGather}}};
}

Route HierarchyRoute(const PiecewiseCost& scatter, const PiecewiseCost& network,
                     const PiecewiseCost& gather) {
  return {{"intra-node", "network"},
          {{"reduce-scatter", {{0, scatter}}, Collective::kReduceScatter},
           {"all-reduce", {{1, network}}},
           {"all-gather", {{0, gather}}, Collective::kAllGather}}};
}

Route RailsRoute(const std::vector<PiecewiseCost>& lines) {
  Route route{{}, {{"all-reduce", {}}}};
  for (std::size_t index = 0; index < lines.size(); ++index) {
    route.lanes.push_back("rail" + std::to_string(index));
    route.stages[0].rails.push_back({static_cast<std::uint32_t>(index), lines[index]});
  }
  return route;
}

Status CheckRoute(const Route& route) {
  if (route.stages.empty()) return Refuse("it has no stages");
  if (route.stages.size() > kStagesMax) return Refuse("too many stages");
  if (route.lanes.empty() || route.lanes.size() > kLanesMax) return Refuse("no lanes or too many");
  for (const Collective half : {Collective::kReduceScatter, Collective::kAllGather}) {
    const bool passes = std::ranges::any_of(
        route.stages, [half](const Stage& stage) { return Passes(stage, half); });
    if (!passes) return Refuse("no stage carries one half of an all-reduce");
  }
  for (const Stage& stage : route.stages) {
    if (stage.rails.empty()) return Refuse(stage.name + " has no lane");
    if (Status status = CheckCoded(stage); !status) return status;
    std::vector<bool> taken(route.lanes.size());
    for (const Rail& rail : stage.rails) {
      if (rail.lane >= route.lanes.size()) return Refuse(stage.name + " names an unknown lane");
      if (taken[rail.lane]) return Refuse(stage.name + " uses a lane twice");
      taken[rail.lane] = true;
      if (Status status = CheckPiecewiseCost(rail.line); !status) {
        return status.error().Within(stage.name);
      }
      if (stage.rails.size() == 1) continue;
      if (!rail.line.affine() || SlopeOf(rail) <= 0) {
        return Refuse(stage.name + " splits blocks over a lane whose cost line is not straight");
      }
    }
  }
  return {};
}

std::vector<std::uint64_t> Shares(const Stage& stage, std::uint64_t bytes,
                                  std::uint64_t element_bytes) {
  std::vector<std::uint64_t> shares(stage.rails.size(), 0);
  if (stage.rails.size() == 1) {
    shares[0] = bytes;
    return shares;
  }
  std::vector<std::size_t> used = ByStartup(stage);
  const double tau = TogetherSeconds(stage, static_cast<double>(bytes), used);
  std::uint64_t rest = bytes;
  for (const std::size_t index : used) {
    const Rail& rail = stage.rails[index];
    const double share = std::max(0.0, (tau - StartupOf(rail)) / SlopeOf(rail));
    const std::uint64_t whole = static_cast<std::uint64_t>(share) / element_bytes * element_bytes;
    shares[index] = std::min(rest, whole);
    rest -= shares[index];
  }
  AssignRest(stage, used, rest, element_bytes, shares);
  const std::uint64_t sum = std::accumulate(shares.begin(), shares.end(), std::uint64_t{0});
  HR_CHECK(sum == bytes, sum, bytes);
  return shares;
}

double StageSeconds(const Stage& stage, std::uint64_t bytes, std::uint64_t element_bytes) {
  if (stage.rails.size() == 1) return stage.rails[0].line.Seconds(bytes);
  const std::vector<std::uint64_t> shares = Shares(stage, bytes, element_bytes);
  double seconds = 0;
  for (std::size_t index = 0; index < shares.size(); ++index) {
    if (shares[index] == 0) continue;
    seconds = std::max(seconds, stage.rails[index].line.Seconds(shares[index]));
  }
  return seconds;
}

double StageSeconds(const Stage& stage, Collective kind, std::uint64_t bytes,
                    std::uint64_t element_bytes) {
  const double whole_s = StageSeconds(stage, bytes, element_bytes);
  return IsHalf(kind) && !IsHalf(stage.kind) ? whole_s / 2 : whole_s;
}

std::size_t FirstStage(const Route& route, Collective kind) {
  const auto first = std::ranges::find_if(
      route.stages, [kind](const Stage& stage) { return Passes(stage, kind); });
  HR_CHECK(first != route.stages.end(), static_cast<int>(kind));
  return static_cast<std::size_t>(first - route.stages.begin());
}

PiecewiseCost StageCost(const Stage& stage) {
  if (stage.rails.size() == 1) return stage.rails[0].line;
  PiecewiseCost line;
  double inverse = 0;
  double ahead = 0;
  for (const std::size_t index : ByStartup(stage)) {
    const double startup_s = StartupOf(stage.rails[index]);
    // The rail comes in where the block is so large that the others alone would end later than the
    // rail's startup: m = sum over them of (a - a_i)/b_i.
    const double from = std::max(0.0, std::ceil(startup_s * inverse - ahead));
    if (from >= 0x1p62) break;
    inverse += 1 / SlopeOf(stage.rails[index]);
    ahead += startup_s / SlopeOf(stage.rails[index]);
    const CostPiece piece{static_cast<std::uint64_t>(from), ahead / inverse, 1 / inverse};
    if (!line.pieces.empty() && line.pieces.back().from_bytes == piece.from_bytes) {
      line.pieces.pop_back();
    }
    line.pieces.push_back(piece);
  }
  HR_CHECK(!line.pieces.empty(), stage.rails.size());
  return line;
}

std::vector<PiecewiseCost> LaneLines(const Route& route) {
  std::vector<PiecewiseCost> lines(route.lanes.size());
  for (const Stage& stage : route.stages) {
    PiecewiseCost& lane = lines[stage.rails.front().lane];
    const PiecewiseCost line = StageCost(stage);
    lane = lane.pieces.empty() ? line : Sum(lane, line);
  }
  std::erase_if(lines, [](const PiecewiseCost& line) { return line.pieces.empty(); });
  return lines;
}

PiecewiseCost SteadyLine(const Route& route) {
  const std::vector<PiecewiseCost> lanes = LaneLines(route);
  HR_CHECK(!lanes.empty());
  PiecewiseCost slowest = lanes.front();
  for (std::size_t index = 1; index < lanes.size(); ++index) {
    slowest = Slower(slowest, lanes[index]);
  }
  return slowest;
}

PiecewiseCost AloneLine(const Route& route) {
  PiecewiseCost sum = StageCost(route.stages.front());
  for (std::size_t index = 1; index < route.stages.size(); ++index) {
    sum = Sum(sum, StageCost(route.stages[index]));
  }
  return sum;
}

}  // namespace headrace::plan
