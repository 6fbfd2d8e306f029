// The policy `auto`: what recorded iterations are simulated as, and that no policy beats it there.
#include "service/plan/auto.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "service/plan/bound.h"
#include "service/plan/canonical.h"
#include "service/plan/exact.h"
#include "service/plan/simulate.h"
#include "tests/unit/plan/beside.h"
#include "tests/unit/plan/support.h"

namespace headrace::plan {
namespace {

// The profile's own times as one recorded iteration.
RecordedIteration Recorded(const Profile& profile) {
  const Workload work = MakeWorkload(profile);
  RecordedIteration recorded{.release_s = {}, .forward_s = {}, .forward_begin_s = 0};
  for (std::size_t l = 0; l < work.size(); ++l) {
    recorded.release_s.push_back(static_cast<float>(work.release_s[l]));
    recorded.forward_s.push_back(static_cast<float>(profile.tensors[l].forward_s));
  }
  recorded.forward_begin_s = recorded.release_s[0];
  return recorded;
}

// A profile whose times are those of the recorded iteration, which has floats.
Profile WithTimesOf(const Profile& shape, const RecordedIteration& recorded) {
  Profile profile = shape;
  double behind_s = 0;
  for (std::size_t l = profile.tensors.size(); l-- > 0;) {
    profile.tensors[l].backward_s = recorded.release_s[l] - behind_s;
    profile.tensors[l].forward_s = recorded.forward_s[l];
    behind_s = recorded.release_s[l];
  }
  return profile;
}

// How times of ranks and iterations differ from the profile's.
struct Varying {
  double fraction = 0;
  bool iterations = false;  // a whole iteration of all ranks is slow or fast
  bool ranks = false;       // a whole iteration of one rank is
};

// The last of the ranks to release each gradient counts, iteration by iteration.
Recording Vary(const Profile& profile, const Varying& how, std::uint64_t seed) {
  constexpr std::size_t kRanks = 3;
  Random random(seed);
  const auto factor = [&] { return 1 + how.fraction * (2 * random.Unit() - 1); };
  Recording recording;
  for (std::size_t i = 0; i < kRecordedMax; ++i) {
    RecordedIteration all;
    const double of_all = how.iterations ? factor() : 1;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      const double of_rank = how.ranks ? factor() : 1;
      Profile own = profile;
      for (Tensor& tensor : own.tensors) {
        const bool alone = !how.iterations && !how.ranks;
        tensor.backward_s *= of_all * of_rank * (alone ? factor() : 1);
        tensor.forward_s *= of_all * of_rank * (alone ? factor() : 1);
      }
      const RecordedIteration one = Recorded(own);
      if (rank == 0) all = one;
      for (std::size_t l = 0; l < one.release_s.size(); ++l) {
        all.release_s[l] = std::max(all.release_s[l], one.release_s[l]);
        all.forward_s[l] = std::max(all.forward_s[l], one.forward_s[l]);
      }
      all.forward_begin_s = std::max(all.forward_begin_s, one.forward_begin_s);
    }
    recording.iterations.push_back(std::move(all));
  }
  return recording;
}

TEST(Forecast, EqualsTheEventSimulationWithoutContention) {
  Random random(1);
  for (int instance = 0; instance < 300; ++instance) {
    const Profile shape = RandomProfile(random, 12, 1'000'000);
    const RecordedIteration recorded = Recorded(shape);
    const Profile profile = WithTimesOf(shape, recorded);
    const Route route = RandomRoute(random, profile);
    const Policy policy = kPolicies[Below(random, kPolicies.size())];
    const Plan plan = *MakePlan(policy, profile, route);
    const auto seconds = ForecastEach(MakeWorkload(profile), route,
                                      {.iterations = {recorded}, .contention = 0}, DraftOf(plan));
    const double simulated_s = Simulate(profile, route, plan, {})->iteration_s;
    ASSERT_EQ(seconds.size(), 1U);
    ASSERT_NEAR(seconds[0], simulated_s, simulated_s * 1e-6) << Name(policy) << " " << instance;
  }
}

// Two gradients of one block each on a lane of 1 s a block, contention one half. Computing: 2 s to
// the first gradient; the lane is busy from 2 to 3, in which half a second of work is done, so the
// second of 1 s of work is ready at 3.5 and on the lane until 4.5. Of the forward pass, which may
// begin at 3.5, tensor 0 is ready at 4.5 and takes 1 s on an idle lane; then tensor 1 takes 1 s.
TEST(Forecast, SlowsComputingDownWhileALaneIsBusy) {
  const Profile profile = ProfileOf({{4, 1, 1}, {4, 2, 1}}, DType::kUInt8);
  const Route route = AllReduceRoute(Affine(1, 0));
  const Plan plan = *MakePlan(Policy::kWfbp, profile, route);
  Draft draft = DraftOf(plan);
  const Recording recording{.iterations = {Recorded(profile)}, .contention = 0.5};
  const Workload work = MakeWorkload(profile);
  EXPECT_DOUBLE_EQ(ForecastOf(work, route, recording, draft).mean_s, 6.5);
  // With both in one block nothing is under way while computing runs.
  draft = DraftOf(*MakePlan(Policy::kBsp, profile, route));
  EXPECT_DOUBLE_EQ(ForecastOf(work, route, recording, draft).mean_s, 3 + 1 + 2);
}

// The forward pass beside a lane that is still busy: tensor 1's block ends at 5, tensor 0's at 4.
TEST(Forecast, SlowsTheForwardPassDown) {
  const Profile profile = ProfileOf({{4, 1, 1}, {4, 2, 1}}, DType::kUInt8);
  const Route route = AllReduceRoute(Affine(1, 0));
  Draft draft;
  draft.Open();
  draft.Append(0, 0, 4);
  draft.Open();
  draft.Append(1, 0, 4);
  const Recording recording{.iterations = {Recorded(profile)}, .contention = 0.5};
  // From 4 to 5 half of tensor 0's second is done, and the rest by 5.5; then tensor 1.
  EXPECT_DOUBLE_EQ(ForecastOf(MakeWorkload(profile), route, recording, draft).mean_s, 6.5);
}

// Against a simulation of its own kind, event by event. On one lane both are exact. On other routes
// the timetable is repeated kSettlingMax times at most, which has to be enough: the releases settle
// the slower the more computing loses.
TEST(Forecast, SettlesOnWhatHappensBesideBusyLanes) {
  Random random(9);
  std::vector<double> off;
  int serial = 0;
  for (int instance = 0; instance < 600; ++instance) {
    const Profile profile = RandomProfile(random, 12, 1'000'000);
    const Route route = RandomRoute(random, profile);
    const Policy policy = kPolicies[Below(random, kPolicies.size())];
    const Recording recording{.iterations = {Recorded(profile)}, .contention = 0.5 * random.Unit()};
    const Workload work = MakeWorkload(profile);
    const Draft draft = DraftOf(*MakePlan(policy, profile, route));
    const double happens_s = MeanSecondsBeside(work, route, draft, recording);
    const double forecast_s = ForecastOf(work, route, recording, draft).mean_s;
    const double share = std::abs(forecast_s - happens_s) / happens_s;
    ASSERT_LE(share, recording.contention < 0.25 ? 0.005 : 0.03)
        << Name(policy) << ", contention " << recording.contention << ", instance " << instance;
    if (route.stages.size() == 1 && route.stages[0].rails.size() == 1) {
      ASSERT_LE(share, kRounding) << Name(policy) << ", instance " << instance;
      ++serial;
    } else {
      off.push_back(share);
    }
  }
  EXPECT_GT(serial, 60);
  const auto most = off.begin() + static_cast<std::ptrdiff_t>(off.size() * 95 / 100);
  std::ranges::nth_element(off, most);
  EXPECT_LE(*most, 1e-3);
}

// The lane's own walk and the repeated timetable are two ways to one answer: a route of two stages
// of which the second takes nothing is that lane.
TEST(Forecast, AgreesBetweenALaneAndARouteThatIsOne) {
  Random random(2);
  int overlapping = 0;
  for (int instance = 0; instance < 400; ++instance) {
    const Profile profile = RandomProfile(random, 8, 1'000'000);
    const CostPiece line = RandomLine(random, profile);
    const Route lane = AllReduceRoute({{line}});
    Route route = lane;
    route.lanes.emplace_back("nothing");
    route.stages.push_back({.name = "nothing", .rails = {{1, Affine(0, 0)}}});
    const Recording recording{.iterations = {Recorded(profile)}, .contention = 0.3 * random.Unit()};
    const Workload work = MakeWorkload(profile);
    const Policy policy = instance % 2 == 0 ? Policy::kExact : Policy::kMgWfbp;
    const Plan plan = *MakePlan(policy, profile, lane);
    const Draft draft = DraftOf(plan);
    if (draft.blocks.size() < 2 || draft.blocks.size() > 4) continue;
    const double lane_s = ForecastOf(work, lane, recording, draft).mean_s;
    ASSERT_NEAR(ForecastOf(work, route, recording, draft).mean_s, lane_s, lane_s * 2e-3)
        << instance;
    if (plan.blocks[1].begin_s < work.backward_s()) ++overlapping;
  }
  EXPECT_GT(overlapping, 50);
}

// The mean of what happens with the plan on the recorded iterations; 0: not asked, as events of
// many blocks take long.
double Happens(const Workload& work, const Route& route, const Plan& plan,
               const Recording& recording) {
  constexpr std::size_t kBlocksMax = 48;
  if (plan.blocks.size() > kBlocksMax) return 0;
  return MeanSecondsBeside(work, route, DraftOf(plan), recording);
}

TEST(AutoPolicy, IsNeverSlowerThanAnyPolicyOnRecordedIterations) {
  Random random(3);
  int compared = 0;
  int better = 0;
  int instances = 0;
  for (const double fraction : {0.05, 0.2, 0.4}) {
    for (const bool iterations : {false, true}) {
      for (const bool ranks : {false, true}) {
        for (int instance = 0; instance < 12; ++instance) {
          const Profile profile = RandomProfile(random, 20, 1'000'000);
          const Route route = instance % 3 == 0 ? RandomRoute(random, profile)
                                                : AllReduceRoute({{RandomLine(random, profile)}});
          Recording recording = Vary(profile, {fraction, iterations, ranks}, random.Next());
          recording.contention = instance % 2 == 0 ? 0 : 0.4 * random.Unit();
          const Workload work = MakeWorkload(profile);
          const Plan chosen = *MakePlan(Policy::kAuto, profile, route, 1, {}, recording);
          const double mean_s = ForecastOf(work, route, recording, DraftOf(chosen)).mean_s;
          ASSERT_NEAR(mean_s, chosen.predicted_s, mean_s * kRounding);
          // What happens, in words of its own; on routes forecasts may be off by a little.
          const double happens_s = Happens(work, route, chosen, recording);
          const double tolerance = route.serial() ? kRounding : 0.01;
          double best_s = 1e30;
          for (const Policy policy : kPolicies) {
            if (policy == Policy::kAuto) continue;
            const Plan other = *MakePlan(policy, profile, route, 1, {}, recording);
            const double other_s = ForecastOf(work, route, recording, DraftOf(other)).mean_s;
            ASSERT_LE(mean_s, other_s * (1 + kRounding))
                << Name(policy) << ", jitter " << fraction << ", instance " << instance;
            const double other_happens_s = Happens(work, route, other, recording);
            if (happens_s > 0 && other_happens_s > 0) {
              ASSERT_LE(happens_s, other_happens_s * (1 + tolerance))
                  << Name(policy) << ", jitter " << fraction << ", instance " << instance;
              ++compared;
            }
            if (policy != chosen.choice.chosen.policy) best_s = std::min(best_s, other_s);
          }
          // What it says of the next best one holds, and that one may have lost its barrier.
          ASSERT_LE(chosen.choice.next_s, best_s * (1 + kRounding));
          ASSERT_GE(chosen.choice.next_s, mean_s * (1 - kRounding));
          if (chosen.choice.chosen.variant != Variant::kPlain) ++better;
          ++instances;
        }
      }
    }
  }
  EXPECT_GT(compared, 6 * instances);
  // Candidates beside the policies' own drafts are not there for nothing.
  EXPECT_GT(better, instances / 10);
}

TEST(AutoPolicy, IsTheFasterOfExactAndDearWithoutRecordedIterations) {
  Random random(4);
  for (int instance = 0; instance < 50; ++instance) {
    const Profile profile = RandomProfile(random, 12, 1'000'000);
    const Route route = RandomRoute(random, profile);
    const Plan chosen = *MakePlan(Policy::kAuto, profile, route);
    const Plan exact = *MakePlan(Policy::kExact, profile, route);
    const Plan dear = *MakePlan(Policy::kDear, profile, route);
    const Plan& faster = dear.predicted_s < exact.predicted_s ? dear : exact;
    EXPECT_EQ(chosen.predicted_s, faster.predicted_s);
    EXPECT_TRUE(chosen.blocks == faster.blocks) << "instance " << instance;
    EXPECT_EQ(chosen.policy, Policy::kAuto);
    EXPECT_EQ(chosen.choice, Choice());
  }
}

TEST(AutoPolicy, LeavesExactWhatItIs) {
  const Profile profile = NetworkProfile(40, 1);
  const Route route = AllReduceRoute(Affine(1e-3, 1e-9));
  const Recording recording = Vary(profile, {.fraction = 0.3}, 1);
  EXPECT_EQ(DraftOf(*MakePlan(Policy::kExact, profile, route, 1, {}, recording)).ranges,
            DraftOf(*MakePlan(Policy::kExact, profile, route)).ranges);
}

// Where the forward pass takes next to nothing, a barrier costs nothing on the profile's times.
TEST(AutoPolicy, LeavesOutBarriersThatCostNothing) {
  Random random(7);
  for (int i = 0; i < 200; ++i) {
    Profile profile = RandomProfile(random, 8, 1'000'000);
    for (Tensor& tensor : profile.tensors) tensor.forward_s = 0;
    const Route route = RandomRoute(random, profile);
    const Workload work = MakeWorkload(profile);
    const Draft exact = Exact(work, route, {.bound_s = LowerBound(work, route)});
    EXPECT_FALSE(exact.barrier) << i;
    const auto plan = MakePlan(Policy::kAuto, profile, route, 1, {},
                               Vary(profile, {.fraction = 0.1}, static_cast<std::uint64_t>(i)));
    ASSERT_TRUE(plan) << i << ": " << plan.error().text();
    EXPECT_FALSE(plan->barrier) << i;
  }
}

TEST(FasterPlan, MendsThePredictionAndKeepsTheBlocks) {
  const Profile profile = NetworkProfile(40, 1);
  const Route route = AllReduceRoute(Affine(1e-3, 1e-9));
  Recording recording = Vary(profile, {.fraction = 0.1}, 1);
  const Plan first = *MakePlan(Policy::kAuto, profile, route, 2, {}, recording);
  const auto again = [&](double tolerance) {
    return *MakeFasterPlan(Policy::kAuto, profile, route, 3,
                           {.plan = first, .margin = 0.005, .tolerance = tolerance}, recording);
  };
  EXPECT_FALSE(again(0.02).has_value());
  // Data now takes so long that everything is there when the forward pass begins.
  for (RecordedIteration& each : recording.iterations) each.forward_begin_s = 9 * first.predicted_s;
  const std::optional<Plan> mended = again(0.02);
  ASSERT_TRUE(mended.has_value());
  EXPECT_EQ(mended->version, 3U);
  EXPECT_EQ(DraftOf(*mended).ranges, DraftOf(first).ranges);
  EXPECT_EQ(mended->choice.chosen.variant, Variant::kKept);
  EXPECT_GT(mended->predicted_s, first.predicted_s);
  EXPECT_FALSE(again(0.95).has_value());
}

TEST(RecordedIterations, AreRefusedWhereTheyCannotBe) {
  const Profile profile = ProfileOf({{2, 4, 1}, {5, 4, 1}});
  const Route route = AllReduceRoute(Affine(1, 1));
  const auto refused = [&](auto spoil) {
    Recording recording{.iterations = {Recorded(profile), Recorded(profile)}, .contention = 0.5};
    spoil(recording);
    const auto made = MakePlan(Policy::kAuto, profile, route, 1, {}, recording);
    return made.ok() ? std::string() : made.error().text();
  };
  EXPECT_EQ(refused([](Recording&) {}), "");
  EXPECT_NE(refused([](Recording& r) { r.iterations[1].release_s.pop_back(); }), "");
  EXPECT_NE(refused([](Recording& r) { r.iterations[1].forward_s[0] = -1; }), "");
  EXPECT_NE(refused([](Recording& r) { r.iterations[0].release_s[0] = NAN; }), "");
  EXPECT_NE(refused([](Recording& r) {
              std::swap(r.iterations[0].release_s[0], r.iterations[0].release_s[1]);
            }),
            "");
  EXPECT_NE(refused([](Recording& r) { r.iterations[0].forward_begin_s = INFINITY; }), "");
  EXPECT_NE(refused([](Recording& r) { r.contention = 0.95; }), "");
  EXPECT_NE(refused([](Recording& r) { r.iterations.resize(kRecordedMax + 1, r.iterations[0]); }),
            "");
}

TEST(Choice, SurvivesTheCanonicalForm) {
  const Profile profile = NetworkProfile(40, 1);
  const Route route = AllReduceRoute(Affine(1e-3, 1e-9));
  const Recording recording = Vary(profile, {.fraction = 0.3}, 1);
  const Plan plan = *MakePlan(Policy::kAuto, profile, route, 1, {}, recording);
  const std::string text = Canonical(plan);
  const Plan back = *ParseCanonical(text);
  EXPECT_EQ(back.choice.chosen, plan.choice.chosen);
  EXPECT_EQ(back.choice.next, plan.choice.next);
  EXPECT_EQ(back.choice.iterations, kRecordedMax);
  EXPECT_NEAR(back.choice.p90_s, plan.choice.p90_s, 1e-9);
  EXPECT_GE(back.choice.p90_s, back.predicted_s * 0.9);
  EXPECT_EQ(Canonical(back), text);
}

}  // namespace
}  // namespace headrace::plan
