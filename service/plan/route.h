// The route of a block: the stages it passes one after the other, and the lanes they run on.
//
// A lane carries one block at a time. Two stages may share a lane (reduce-scatter and all-gather on
// NVLink; push and pull through one network card): then an earlier block's later stage goes first.
// A stage may use several lanes at once (rails): the block is split into unequal shares that end
// together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ipc/base/codec_cost.h"
#include "ipc/base/halves.h"
#include "ipc/base/result.h"
#include "service/plan/cost.h"
#include "service/plan/workload.h"

namespace headrace::plan {

inline constexpr std::size_t kStagesMax = 8;
inline constexpr std::size_t kLanesMax = 16;

struct Rail {
  std::uint32_t lane = 0;  // index into Route::lanes
  PiecewiseCost line;

  friend bool operator==(const Rail&, const Rail&) = default;
};

// What blocks cost on a stage in one codec: a line for each of its rails, in bytes of the block.
struct CodedLines {
  CodecCost cost;  // what they were made from, for people
  std::vector<PiecewiseCost> lines;

  friend bool operator==(const CodedLines&, const CodedLines&) = default;
};

struct Stage {
  std::string name;
  std::vector<Rail> rails;  // one, or several with straight cost lines
  // What it does to a block: a reduce-scatter and an all-gather are passed by whole blocks and by
  // that half; an all-reduce by both halves, and takes each of them half of its time.
  Collective kind = Collective::kAllReduce;
  std::vector<CodedLines> coded{};  // by codec; empty: blocks cross it as they are
  // Where a transfer may hold neighbours in memory only, encoded or not: where each tensor lies.
  // Empty: transfers may hold what they like.
  std::vector<std::uint64_t> offsets_bytes{};

  friend bool operator==(const Stage&, const Stage&) = default;
};

struct Route {
  std::vector<std::string> lanes;
  std::vector<Stage> stages;
  bool halves = true;  // blocks may travel as a reduce-scatter and, later, an all-gather

  // One stage on one lane with a straight cost line: the case `exact` solves to the optimum.
  bool serial() const;

  friend bool operator==(const Route&, const Route&) = default;
};

// Where parameter servers stand. Colocated ones share the network cards of the training nodes, so
// push and pull take turns; servers on nodes of their own let the two run side by side.
enum class Placement : std::uint8_t { kColocated, kExtra };

Route AllReduceRoute(const PiecewiseCost& line);
Route ParameterServerRoute(const PiecewiseCost& push, const PiecewiseCost& pull,
                           Placement placement);
// Intra-node reduce-scatter, inter-node all-reduce, intra-node all-gather.
Route HierarchyRoute(const PiecewiseCost& scatter, const PiecewiseCost& network,
                     const PiecewiseCost& gather);
Route RailsRoute(const std::vector<PiecewiseCost>& lines);

// 1 to kStagesMax stages, 1 to kLanesMax lanes, good cost lines, no lane twice in one stage, each
// half of an all-reduce carried by some stage.
Status CheckRoute(const Route& route);

// Bytes per rail for a block of `bytes`, whole elements, ending together as nearly as elements
// allow: x_i = (tau - a_i)/b_i with tau = (m + sum a_i/b_i)/(sum 1/b_i), without the lanes whose
// startup is not below tau.
std::vector<std::uint64_t> Shares(const Stage& stage, std::uint64_t bytes,
                                  std::uint64_t element_bytes);
// How long the stage takes a whole block: until the last share ends.
double StageSeconds(const Stage& stage, std::uint64_t bytes, std::uint64_t element_bytes);

// Whether blocks of that kind pass the stage, and how long it takes them.
constexpr bool Passes(const Stage& stage, Collective kind) {
  return !IsHalf(kind) || !IsHalf(stage.kind) || stage.kind == kind;
}
double StageSeconds(const Stage& stage, Collective kind, std::uint64_t bytes,
                    std::uint64_t element_bytes);
// The first stage that blocks of that kind pass. There is one, where the route has checked.
std::size_t FirstStage(const Route& route, Collective kind);

// The stage's rails seen as one lane with one cost line, exact up to the rounding to elements.
PiecewiseCost StageCost(const Stage& stage);
// What one lane spends on a block in all stages that use it. Rails count as one lane.
std::vector<PiecewiseCost> LaneLines(const Route& route);
// The useful cost of a block among many: in a pipeline, that of its slowest lane.
PiecewiseCost SteadyLine(const Route& route);
// What a block costs when it travels alone.
PiecewiseCost AloneLine(const Route& route);

}  // namespace headrace::plan
