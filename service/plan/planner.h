// The entry point of the folder: a profile, a route and a policy go in, a plan comes out.
//
// Pure functions of their arguments: the same inputs give the same plan, bit for bit, on every
// machine (IEEE doubles, no fused multiply-add, no library functions beyond rounding and roots).
#pragma once

#include <optional>
#include <span>

#include "ipc/base/codec_choice.h"
#include "ipc/base/result.h"
#include "ipc/profile.h"
#include "service/plan/plan.h"
#include "service/plan/policies.h"
#include "service/plan/recording.h"
#include "service/plan/route.h"

namespace headrace::plan {

// Refuses profiles, routes and recordings that do not check. `version` is the plan's number within
// its job; units in the settings are whole elements. With recorded iterations the prediction is the
// mean over them, and `auto` takes what is fastest there. `choices` has one for each tensor, or
// nothing: all cross as they are. Of those that leave it to the plan, choose_codecs.h.
Result<Plan> MakePlan(Policy policy, const Profile& profile, const Route& route,
                      std::uint32_t version = 1, const PolicySettings& settings = {},
                      const Recording& recording = {}, std::span<const CodecChoice> choices = {});

// The plan in force, and when another one is worth the change.
struct Present {
  const Plan& plan;
  double iteration_s = 0;  // as it was seen, with whatever else the loop does; 0: not known
  double running_s = 0;    // of it: nobody stood still for gradients
  double margin = 0;       // share of the iteration that a change must save
  // By how much, as a share, the prediction of the plan in force may be off the recorded iterations
  // before the plan is made anew.
  double tolerance = 0;
  // How often the job's plans have stopped encoding what they may since it was last said what that
  // is: the more often, the more it must save to begin again (choose_codecs.h).
  std::uint32_t codec_stops = 0;
};

// The same, but nothing where the new plan would save less than the margin: as both plans come out
// under that profile and on that route, and no more than the time that iterations stand still now.
// What a loop does besides its passes hides gradients too, and makes a saving a smaller share.
//
// With recorded iterations both plans are simulated on those, and the one in force is a candidate
// of `auto`. It is also made anew, with the same blocks where none are faster, when its prediction
// is off by more than the tolerance.
//
// `choices` are those that the plan in force was made for. One that encodes where that no longer
// pays makes room for one that does not, even if it is no faster.
Result<std::optional<Plan>> MakeFasterPlan(Policy policy, const Profile& profile,
                                           const Route& route, std::uint32_t version,
                                           const Present& present, const Recording& recording = {},
                                           std::span<const CodecChoice> choices = {});

}  // namespace headrace::plan
