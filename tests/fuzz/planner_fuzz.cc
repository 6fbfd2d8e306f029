// Fuzz target: what a planner plans for comes from training processes (times, layouts) and from
// other nodes (lines of lanes, costs of codecs). Inputs that do not check are refused; of all
// others there is a plan that holds every byte once, whose times are numbers, and which other nodes
// can read. A check that fails in the planner ends the service, and with it all jobs.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ipc/base/check.h"
#include "service/plan/canonical.h"
#include "service/plan/coded.h"
#include "service/plan/planner.h"
#include "tests/fuzz/script.h"

namespace headrace::plan {
namespace {

constexpr std::size_t kTensors = 16;
constexpr std::size_t kIterations = 3;

class Inputs {
 public:
  Inputs(const std::uint8_t* bytes, std::size_t size) : script_(bytes, size) {}

  std::uint64_t Below(std::uint64_t limit) { return script_.Read<std::uint16_t>() % limit; }
  bool Flag() { return Below(2) == 1; }

  // Nothing, next to nothing, of the usual size, or all that is allowed.
  double Seconds() {
    constexpr std::array<double, 8> kScales = {0, 5e-324, 1e-12, 1e-6, 1e-4, 1e-2, 1, 2e3};
    return kScales[Below(kScales.size())] * static_cast<double>(1 + Below(20));
  }
  double Startup() {
    constexpr std::array<double, 7> kScales = {0, 5e-324, 1e-12, 1e-6, 1e-4, 1, 4e4};
    return kScales[Below(kScales.size())] * static_cast<double>(1 + Below(20));
  }
  double SecondsPerByte() {
    constexpr std::array<double, 8> kScales = {0, 1e-18, 1e-13, 1e-11, 1e-9, 1e-6, 1e-3, 0.04};
    return kScales[Below(kScales.size())] * static_cast<double>(1 + Below(20));
  }

  Profile MakeProfile() {
    Profile profile{.model = "m", .dtype = Flag() ? DType::kFloat32 : DType::kBFloat16};
    const std::size_t count = 1 + Below(kTensors);
    for (std::size_t l = 0; l < count; ++l) {
      const std::uint64_t elements = (1 + Below(300)) << Below(l % 5 == 0 ? 22 : 14);
      profile.tensors.push_back({.name = "w" + std::to_string(l),
                                 .elements = elements,
                                 .backward_s = Seconds(),
                                 .forward_s = Seconds(),
                                 .rows = Flag() ? 1 + Below(64) : 0});
    }
    return profile;
  }

  PiecewiseCost Line(bool straight) {
    PiecewiseCost line = Affine(Startup(), SecondsPerByte());
    if (straight) return line;
    std::uint64_t from = 0;
    for (std::uint64_t more = Below(4); more > 0; --more) {
      from += 1 + (Below(1000) << Below(16));
      line.pieces.push_back({from, Startup(), SecondsPerByte()});
    }
    return line;
  }

  Route MakeRoute(const std::vector<Codec>& codecs) {
    // Those between nodes, which have codecs, are.
    const bool straight = !codecs.empty();
    Route route = [this, straight] {
      switch (Below(6)) {
        case 0:
          return AllReduceRoute(Line(straight));
        case 1:
          return ParameterServerRoute(Line(straight), Line(straight), Placement::kExtra);
        case 2:
          return ParameterServerRoute(Line(true), Line(true), Placement::kColocated);
        case 3:
          return HierarchyRoute(Line(true), Line(straight), Line(true));
        default: {
          std::vector<PiecewiseCost> lines;
          for (std::uint64_t rails = 1 + Below(4); rails > 0; --rails) lines.push_back(Line(true));
          return RailsRoute(lines);
        }
      }
    }();
    route.halves = Flag();
    const auto stage =
        std::ranges::find_if(route.stages, [](const Stage& each) { return !IsHalf(each.kind); });
    if (stage == route.stages.end()) return route;
    for (const Codec& codec : codecs) {
      const CodecCost cost{
          .codec = codec,
          .share = std::max(kCodecShareMin, 1.0 / static_cast<double>(1 + Below(64))),
          .encode_s_per_byte = std::min(SecondsPerByte(), 9e-4),
          .decode_s_per_byte = std::min(SecondsPerByte(), 9e-4)};
      CodedLines coded{.cost = cost, .lines = {}};
      for (const Rail& rail : stage->rails) {
        const CostPiece& plain = rail.line.pieces.back();
        coded.lines.push_back(codec.kind == Codec::kPowerSgd ? FactoredLine(plain, cost)
                                                             : EncodedLine(plain, cost, {}));
      }
      stage->coded.push_back(std::move(coded));
    }
    return route;
  }

  Recording MakeRecording(std::size_t tensors) {
    Recording recording{.iterations = {}, .contention = 0.1 * static_cast<double>(Below(10))};
    for (std::uint64_t left = Below(kIterations + 1); left > 0; --left) {
      RecordedIteration each{.forward_begin_s = Seconds()};
      for (std::size_t l = 0; l < tensors; ++l) {
        each.release_s.push_back(static_cast<float>(Seconds()));
        each.forward_s.push_back(static_cast<float>(Seconds()));
      }
      std::sort(each.release_s.rbegin(), each.release_s.rend());
      recording.iterations.push_back(std::move(each));
    }
    return recording;
  }

  // What each of the tensors may cross in, and which codecs have a cost on the route.
  std::vector<CodecChoice> MakeChoices(std::size_t tensors, std::vector<Codec>& known) {
    constexpr std::array<Codec::Kind, 6> kKinds = {
        Codec::kNone, Codec::kInt8, Codec::kTopK, Codec::kSign, Codec::kLossless, Codec::kPowerSgd};
    if (Flag()) return {};
    for (const Codec::Kind kind : kKinds) {
      if (kind != Codec::kNone && Flag()) known.emplace_back(kind);
    }
    const bool free = Flag();
    AllowedCodecs allowed;
    for (std::size_t i = 0; i < std::min(known.size(), AllowedCodecs::kMax); ++i) {
      allowed.Add(known[i]);
    }
    std::vector<CodecChoice> choices;
    for (std::size_t l = 0; l < tensors; ++l) {
      const Codec::Kind kind = kKinds[Below(kKinds.size())];
      choices.push_back(free && Flag() && !allowed.empty() ? CodecChoice(allowed)
                                                           : CodecChoice(kind));
    }
    return choices;
  }

 private:
  fuzz::Script script_;
};

void CheckPlan(const Plan& plan, const Profile& profile) {
  const Status covers = CheckCoverage(plan, MakeWorkload(profile));
  HR_CHECK(covers.ok(), covers.ok() ? "" : covers.error().text());
  HR_CHECK(std::isfinite(plan.predicted_s) && plan.predicted_s >= 0, plan.predicted_s);
  HR_CHECK(plan.lower_bound_s <= plan.predicted_s * (1 + 1e-9), plan.lower_bound_s,
           plan.predicted_s);
  const std::string text = Canonical(plan);
  const auto again = ParseCanonical(text);
  HR_CHECK(again.ok(), again.ok() ? "" : again.error().text());
  HR_CHECK(Canonical(*again) == text, text.size());
}

void MakePlans(const std::uint8_t* bytes, std::size_t size) {
  Inputs inputs(bytes, size);
  const Policy policy = kPolicies[inputs.Below(kPolicies.size())];
  const Profile profile = inputs.MakeProfile();
  std::vector<Codec> known;
  const std::vector<CodecChoice> choices = inputs.MakeChoices(profile.tensors.size(), known);
  const Route route = inputs.MakeRoute(known);
  const PolicySettings settings{
      .unit_bytes = inputs.Below(4) == 0 ? std::uint64_t{4096} << inputs.Below(20) : 0,
      .credits = static_cast<std::uint32_t>(inputs.Below(6)),
      .cycle_s = inputs.Seconds(),
      .barrier = inputs.Below(4) == 0};
  const Recording recording = inputs.MakeRecording(profile.tensors.size());
  const Result<Plan> plan = MakePlan(policy, profile, route, 1, settings, recording, choices);
  if (!plan) {
    HR_CHECK(!plan.error().text().empty());
    return;
  }
  CheckPlan(*plan, profile);
  // Lines and times change; the plan in force is this one.
  const Route later = inputs.MakeRoute(known);
  const Recording since = inputs.MakeRecording(profile.tensors.size());
  const Present present{.plan = *plan,
                        .iteration_s = inputs.Seconds(),
                        .running_s = inputs.Seconds(),
                        .margin = 0.02,
                        .tolerance = 0.05,
                        .codec_stops = static_cast<std::uint32_t>(inputs.Below(8))};
  const auto faster = MakeFasterPlan(policy, profile, later, 2, present, since, choices);
  if (faster && *faster) CheckPlan(**faster, profile);
}

}  // namespace
}  // namespace headrace::plan

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  headrace::plan::MakePlans(bytes, size);
  return 0;
}
