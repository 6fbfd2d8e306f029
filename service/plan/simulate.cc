#include "service/plan/simulate.h"

#include <algorithm>
#include <queue>
#include <set>

#include "ipc/base/check.h"
#include "service/plan/bound.h"
#include "service/plan/coded.h"
#include "service/plan/random.h"

namespace headrace::plan {
namespace {

// What can happen: the last gradient of a block is ready, or a block leaves a stage.
struct Event {
  double at_s = 0;
  std::uint32_t block = 0;
  std::int32_t stage = kReady;
  static constexpr std::int32_t kReady = -1;

  bool operator>(const Event& other) const { return at_s > other.at_s; }
};

// A block that waits for a stage; the earliest block goes first.
struct Waiting {
  std::uint32_t block = 0;
  std::uint32_t stage = 0;
  friend auto operator<=>(const Waiting&, const Waiting&) = default;
};

class World {
 public:
  World(const Workload& work, const Route& route, const Plan& plan)
      : work_(work),
        route_(route),
        plan_(plan),
        occupied_(route.lanes.size(), false),
        busy_s_(route.lanes.size(), 0),
        ready_s_(plan.blocks.size(), -1),
        end_s_(plan.blocks.size(), 0) {}

  void Run() {
    for (std::uint32_t block = 0; block < plan_.blocks.size(); ++block) {
      double ready_s = 0;
      for (const TensorRange& range : plan_.blocks[block].ranges) {
        ready_s = std::max(ready_s, work_.release_s[range.tensor]);
      }
      coming_.push({ready_s, block, Event::kReady});
    }
    while (!coming_.empty()) {
      const double now = coming_.top().at_s;
      while (!coming_.empty() && coming_.top().at_s <= now) {
        const Event event = coming_.top();
        coming_.pop();
        OnEvent(event);
      }
      Begin(now);
    }
    HR_CHECK(ended_ == plan_.blocks.size(), ended_, plan_.blocks.size());
  }

  const std::vector<double>& busy_s() const { return busy_s_; }
  const std::vector<double>& end_s() const { return end_s_; }
  std::vector<Span> ReleaseSpans() { return std::move(spans_); }

 private:
  void OnEvent(const Event& event) {
    if (event.stage == Event::kReady) {
      HR_CHECK(ready_s_[event.block] < 0, event.block);
      ready_s_[event.block] = event.at_s;
      return;
    }
    const auto stage = static_cast<std::uint32_t>(event.stage);
    for (const Rail& rail : route_.stages[stage].rails) {
      if (!PassesStage(event.block, stage)) break;
      HR_CHECK(occupied_[rail.lane], event.block, stage, rail.lane);
      occupied_[rail.lane] = false;
    }
    if (stage + 1 < route_.stages.size()) {
      waiting_.insert({event.block, stage + 1});
      return;
    }
    end_s_[event.block] = event.at_s;
    ++ended_;
    if (plan_.blocks[event.block].kind == Collective::kReduceScatter) --scatters_open_;
    HR_CHECK(ended_ <= begun_ && begun_ <= admitted_, ended_, begun_, admitted_);
  }

  // Gives free lanes to the blocks that wait, the earliest first. A block's first stage waits only
  // once the block before it has begun: the plan's order holds even when a later block is ready.
  void Begin(double now) {
    bool begun = true;
    while (begun) {
      begun = false;
      Admit();
      for (const Waiting& waiting : waiting_) {
        if (PassesStage(waiting.block, waiting.stage) && !LanesFree(waiting.stage)) continue;
        const Waiting chosen = waiting;
        waiting_.erase(chosen);
        Start(chosen, now);
        begun = true;
        break;
      }
    }
  }

  void Admit() {
    if (admitted_ != begun_ || admitted_ == plan_.blocks.size()) return;
    if (ready_s_[admitted_] < 0) return;
    if (plan_.in_flight_max > 0 && begun_ - ended_ >= plan_.in_flight_max) return;
    const bool gathers = plan_.blocks[admitted_].kind == Collective::kAllGather;
    if (gathers && scatters_open_ > 0) return;
    waiting_.insert({static_cast<std::uint32_t>(admitted_++), 0});
  }

  bool PassesStage(std::uint32_t block, std::uint32_t stage) const {
    return Passes(route_.stages[stage], plan_.blocks[block].kind);
  }

  bool LanesFree(std::uint32_t stage) const {
    const auto& rails = route_.stages[stage].rails;
    return std::none_of(rails.begin(), rails.end(),
                        [&](const Rail& rail) { return occupied_[rail.lane]; });
  }

  void Start(const Waiting& chosen, double now) {
    const Stage& stage = route_.stages[chosen.stage];
    const PlannedBlock& block = plan_.blocks[chosen.block];
    const std::vector<double> rails_s = RailSeconds(stage, work_, block.ranges, block.bytes);
    const bool passes = PassesStage(chosen.block, chosen.stage);
    const double share_of_time = IsHalf(block.kind) && !IsHalf(stage.kind) ? 0.5 : 1;
    double end_s = now;
    for (std::size_t index = 0; passes && index < rails_s.size(); ++index) {
      const Rail& rail = stage.rails[index];
      HR_CHECK(!occupied_[rail.lane], chosen.block, chosen.stage, rail.lane);
      occupied_[rail.lane] = true;
      if (rails_s[index] < 0) continue;
      const double lasts_s = rails_s[index] * share_of_time;
      busy_s_[rail.lane] += lasts_s;
      spans_.push_back({chosen.block, chosen.stage, rail.lane, now, now + lasts_s});
      end_s = std::max(end_s, now + lasts_s);
    }
    if (chosen.stage == 0) {
      HR_CHECK(chosen.block == begun_, chosen.block, begun_);  // the plan's order
      ++begun_;
      if (block.kind == Collective::kReduceScatter) ++scatters_open_;
    }
    coming_.push({end_s, chosen.block, static_cast<std::int32_t>(chosen.stage)});
  }

  const Workload& work_;
  const Route& route_;
  const Plan& plan_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> coming_;
  std::set<Waiting> waiting_;
  std::vector<bool> occupied_;
  std::vector<double> busy_s_;
  std::vector<double> ready_s_;  // per block; -1 while a gradient is missing
  std::vector<double> end_s_;
  std::vector<Span> spans_;
  std::size_t admitted_ = 0;  // blocks that wait for the first stage or are past it
  std::size_t begun_ = 0;
  std::size_t ended_ = 0;
  std::size_t scatters_open_ = 0;  // reduce-scatters begun and not ended
};

// Walks the forward pass of the next iteration along the ends of communication.
void RunForward(const Profile& profile, const Plan& plan, const std::vector<double>& end_s,
                double backward_s, Simulation& simulation) {
  std::vector<double> reduced_s(profile.tensors.size(), 0);
  double last_s = 0;
  for (std::size_t block = 0; block < plan.blocks.size(); ++block) {
    last_s = std::max(last_s, end_s[block]);
    for (const TensorRange& range : plan.blocks[block].ranges) {
      reduced_s[range.tensor] = std::max(reduced_s[range.tensor], end_s[block]);
    }
  }
  double now = backward_s;
  for (std::size_t l = 0; l < profile.tensors.size(); ++l) {
    const double begin_s = std::max(now, plan.barrier ? last_s : reduced_s[l]);
    simulation.forward_wait_s += begin_s - now;
    now = begin_s + profile.tensors[l].forward_s;
    simulation.forward_begin_s.push_back(begin_s);
    simulation.forward_end_s.push_back(now);
  }
  simulation.iteration_s = now;
}

}  // namespace

Profile Jittered(const Profile& profile, const Jitter& jitter) {
  Profile jittered = profile;
  Random random(jitter.seed);
  for (Tensor& tensor : jittered.tensors) {
    tensor.backward_s *= 1 + jitter.fraction * (2 * random.Unit() - 1);
    tensor.forward_s *= 1 + jitter.fraction * (2 * random.Unit() - 1);
  }
  return jittered;
}

Result<Simulation> Simulate(const Profile& profile, const Route& route, const Plan& plan,
                            const Jitter& jitter) {
  if (Status status = CheckProfile(profile); !status) return status.error();
  if (Status status = CheckRoute(route); !status) return status.error();
  if (!(jitter.fraction >= 0 && jitter.fraction <= 1)) {
    return Error(Code::kInvalidArgument, "jitter must lie between 0 and 1");
  }
  const Profile jittered = Jittered(profile, jitter);
  Workload work = MakeWorkload(jittered);
  if (Status status = CheckCoverage(plan, work); !status) return status.error();
  work.codecs = CodecsOf(plan, work.size());
  World world(work, route, plan);
  world.Run();
  Simulation simulation;
  RunForward(jittered, plan, world.end_s(), work.backward_s(), simulation);
  simulation.release_s = work.release_s;
  simulation.lower_bound_s = LowerBound(work, route, HasHalves(plan));
  simulation.excess =
      simulation.lower_bound_s > 0 ? simulation.iteration_s / simulation.lower_bound_s - 1 : 0;
  for (const double busy_s : world.busy_s()) {
    const double share = simulation.iteration_s > 0 ? busy_s / simulation.iteration_s : 0;
    simulation.lanes.push_back({busy_s, share});
  }
  simulation.spans = world.ReleaseSpans();
  return simulation;
}

}  // namespace headrace::plan
