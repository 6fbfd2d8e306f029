// How long planning takes. Beside each figure stands the limit it must keep (limit_ms, where there
// is one) and how near the plan comes to the lower bound (to_bound). Times are not asserted.
//
//   plan_bench --benchmark_out=plan.json --benchmark_out_format=json
#include <benchmark/benchmark.h>

#include "ipc/base/codec_choice.h"
#include "ipc/profile.h"
#include "service/plan/coded.h"
#include "service/plan/simulate.h"
#include "tests/support/profile_json.h"
#include "tests/unit/plan/support.h"

namespace headrace::plan {
namespace {

constexpr std::uint64_t kSeed = 1;
constexpr double kStartup = 3e-4;

// Communication takes as long as the computation: where there is most to decide.
PiecewiseCost LineFor(const Profile& profile) {
  const Workload work = MakeWorkload(profile);
  return Affine(kStartup,
                (work.backward_s() + work.forward_s()) / static_cast<double>(work.total_bytes()));
}

void Measure(benchmark::State& state, Policy policy, const Profile& profile, const Route& route,
             double limit_ms) {
  Result<Plan> plan = MakePlan(policy, profile, route);
  for (auto _ : state) {
    plan = MakePlan(policy, profile, route);
    benchmark::DoNotOptimize(plan);
  }
  if (limit_ms > 0) state.counters["limit_ms"] = limit_ms;
  state.counters["to_bound"] = plan->predicted_s / plan->lower_bound_s;
  state.counters["blocks"] = static_cast<double>(plan->blocks.size());
}

// `exact` on one lane: 161 tensors (ResNet-50), 604 (DenseNet-201), 10 000.
void ExactOnOneLane(benchmark::State& state) {
  const Profile profile = NetworkProfile(static_cast<std::size_t>(state.range(0)), kSeed);
  const double limit_ms = state.range(0) <= 161 ? 1 : state.range(0) <= 604 ? 5 : 200;
  Measure(state, Policy::kExact, profile, AllReduceRoute(LineFor(profile)), limit_ms);
}
BENCHMARK(ExactOnOneLane)->Arg(161)->Arg(604)->Arg(10000)->Unit(benchmark::kMillisecond);

void Growth(benchmark::State& state) {
  const Profile profile = NetworkProfile(static_cast<std::size_t>(state.range(0)), kSeed);
  Measure(state, Policy::kExact, profile, AllReduceRoute(LineFor(profile)), 0);
  state.SetComplexityN(state.range(0));
}
BENCHMARK(Growth)->RangeMultiplier(4)->Range(64, 65536)->Complexity()->Unit(
    benchmark::kMillisecond);

// Small startups make many blocks worth while, which is where the sweep has most states.
void ExactByStartupNs(benchmark::State& state) {
  const Profile profile = NetworkProfile(10000, kSeed);
  PiecewiseCost line = LineFor(profile);
  line.pieces[0].startup_s = static_cast<double>(state.range(0)) * 1e-9;
  Measure(state, Policy::kExact, profile, AllReduceRoute(line), 200);
}
BENCHMARK(ExactByStartupNs)
    ->RangeMultiplier(100)
    ->Range(1, 100000000)
    ->Unit(benchmark::kMillisecond);

void EachPolicy(benchmark::internal::Benchmark* bench) {
  for (const Policy policy : kPolicies) bench->Arg(static_cast<std::int64_t>(policy));
}

void PolicyOnOneLane(benchmark::State& state) {
  const auto policy = static_cast<Policy>(state.range(0));
  const Profile profile = NetworkProfile(kLargeTensors, kSeed);
  Measure(state, policy, profile, AllReduceRoute(LineFor(profile)), 100);
  state.SetLabel(std::string(Name(policy)));
}
BENCHMARK(PolicyOnOneLane)->Apply(EachPolicy)->Unit(benchmark::kMillisecond);

void PolicyOnServers(benchmark::State& state) {
  const auto policy = static_cast<Policy>(state.range(0));
  const Profile profile = NetworkProfile(kLargeTensors, kSeed);
  const PiecewiseCost line = LineFor(profile);
  Measure(state, policy, profile, ParameterServerRoute(line, line, Placement::kExtra), 100);
  state.SetLabel(std::string(Name(policy)));
}
BENCHMARK(PolicyOnServers)->Apply(EachPolicy)->Unit(benchmark::kMillisecond);

void PolicyInHierarchy(benchmark::State& state) {
  const auto policy = static_cast<Policy>(state.range(0));
  const Profile profile = NetworkProfile(kLargeTensors, kSeed);
  const PiecewiseCost line = LineFor(profile);
  const PiecewiseCost inner = Affine(kStartup / 10, line.pieces[0].s_per_byte / 4);
  Measure(state, policy, profile, HierarchyRoute(inner, line, inner), 100);
  state.SetLabel(std::string(Name(policy)));
}
BENCHMARK(PolicyInHierarchy)->Apply(EachPolicy)->Unit(benchmark::kMillisecond);

// As many iterations as nodes keep.
Recording RecordingOf(const Profile& profile) {
  Recording recording{.iterations = {}, .contention = {0.05, 0.15}};
  for (std::uint64_t seed = 1; seed <= kRecordedMax; ++seed) {
    const Workload work = MakeWorkload(Jittered(profile, {.fraction = 0.2, .seed = seed}));
    RecordedIteration& each = recording.iterations.emplace_back();
    each.release_s.assign(work.release_s.begin(), work.release_s.end());
    for (const Tensor& tensor : profile.tensors) {
      each.forward_s.push_back(static_cast<float>(tensor.forward_s));
    }
    each.forward_begin_s = work.backward_s();
  }
  return recording;
}

// What watch does for a job: everything that `auto` tries, on 32 recorded iterations.
void AutoOnRecorded(benchmark::State& state) {
  const Profile profile = NetworkProfile(static_cast<std::size_t>(state.range(0)), kSeed);
  const Recording recording = RecordingOf(profile);
  const PiecewiseCost line = LineFor(profile);
  const PiecewiseCost inner = Affine(kStartup / 10, line.pieces[0].s_per_byte / 4);
  const Route route =
      state.range(1) == 1 ? AllReduceRoute(line) : HierarchyRoute(inner, line, inner);
  Result<Plan> plan = MakePlan(Policy::kAuto, profile, route, 1, {}, recording);
  for (auto _ : state) {
    plan = MakePlan(Policy::kAuto, profile, route, 1, {}, recording);
    benchmark::DoNotOptimize(plan);
  }
  state.counters["limit_ms"] = 100;
  state.counters["blocks"] = static_cast<double>(plan->blocks.size());
  state.SetLabel(Describe(plan->choice.chosen));
}
BENCHMARK(AutoOnRecorded)
    ->Args({161, 1})
    ->Args({604, 1})
    ->Args({604, 3})
    ->Unit(benchmark::kMillisecond);

// The same where the plan chooses among two codecs, on a lane so many times slower than computing.
void AutoInCodecs(benchmark::State& state) {
  const Profile profile = NetworkProfile(static_cast<std::size_t>(state.range(0)), kSeed);
  const Recording recording = RecordingOf(profile);
  PiecewiseCost line = LineFor(profile);
  line.pieces[0].s_per_byte *= static_cast<double>(state.range(2));
  const PiecewiseCost inner = Affine(kStartup / 10, line.pieces[0].s_per_byte / 4);
  Route route = state.range(1) == 1 ? AllReduceRoute(line) : HierarchyRoute(inner, line, inner);
  Stage& between = route.stages[route.stages.size() / 2];
  for (const Codec codec : {Codec::kInt8, Codec::kBFloat16}) {
    const CodecCost cost{.codec = codec,
                         .share = codec == Codec::kInt8 ? 0.25 : 0.5,
                         .encode_s_per_byte = 2e-10,
                         .decode_s_per_byte = 1e-10};
    between.coded.push_back({cost, {EncodedLine(line.pieces[0], cost, {})}});
  }
  const std::vector<CodecChoice> choices(profile.tensors.size(), *ChoiceNamed("auto:int8,bf16"));
  Result<Plan> plan = MakePlan(Policy::kAuto, profile, route, 1, {}, recording, choices);
  for (auto _ : state) {
    plan = MakePlan(Policy::kAuto, profile, route, 1, {}, recording, choices);
    benchmark::DoNotOptimize(plan);
  }
  state.counters["limit_ms"] = 100;
  state.counters["pred_ms"] = plan->predicted_s * 1e3;
  state.counters["blocks"] = static_cast<double>(plan->blocks.size());
  state.SetLabel(Describe(plan->choice.chosen) +
                 (plan->verdict.pays ? ", pays" : ", does not pay"));
}
BENCHMARK(AutoInCodecs)
    ->Args({161, 1, 4})
    ->Args({604, 1, 1})
    ->Args({604, 1, 4})
    ->Args({604, 3, 1})
    ->Args({604, 3, 4})
    ->Unit(benchmark::kMillisecond);

void EventSimulation(benchmark::State& state) {
  const Profile profile = NetworkProfile(kLargeTensors, kSeed);
  const Route route = AllReduceRoute(LineFor(profile));
  const Plan plan = *MakePlan(Policy::kByteScheduler, profile, route);
  for (auto _ : state) {
    auto simulation = Simulate(profile, route, plan, {0.05, 1});
    benchmark::DoNotOptimize(simulation);
  }
}
BENCHMARK(EventSimulation)->Unit(benchmark::kMillisecond);

void ReadingAProfile(benchmark::State& state) {
  const std::string text = ProfileJson(NetworkProfile(kLargeTensors, kSeed));
  for (auto _ : state) {
    auto profile = ParseProfile(text);
    benchmark::DoNotOptimize(profile);
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size()));
}
BENCHMARK(ReadingAProfile)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace headrace::plan
