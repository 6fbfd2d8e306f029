// How one job comes to its plans, at the service that leads it: when one is made, from what, when
// it goes to the nodes and from which iteration on it moves their gradients. Pure: no clock, no
// network, no log; the work itself (MakePlan) is done elsewhere.
//
// The first plan is `wfbp`, for which nothing need be known; under it the nodes see how long
// everything takes. When all of them have reported, a plan by the wanted policy follows, and later
// another one whenever it would be faster by the margin, its prediction is off what was recorded,
// another policy is wanted, or a rail was lost or is back. One plan is under way at a time: made,
// offered to every node, and, when all hold it, switched to; the next one waits until the nodes
// report iterations under it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ipc/base/error.h"
#include "service/actor/request.h"
#include "service/cluster/layouts.h"
#include "service/cluster/planning_inputs.h"
#include "service/dispatch/messages.h"
#include "service/plan/plan.h"
#include "service/watch/messages.h"

namespace headrace::service {

// By how much of the iteration a new plan must be faster than the one in force.
inline constexpr double kPlanMargin = 0.005;
// By how much a plan's prediction may be off the recorded iterations before it is made anew.
inline constexpr double kPredictionTolerance = 0.02;
// For how long a plan is in force before that is looked at: else short iterations, whose times
// differ by more each time, would switch plans without end. The first plans are made from few
// iterations and under another plan, so theirs are looked at soon: each later one after twice the
// time, up to the longest.
inline constexpr double kPredictionHoldsSeconds = 10;
inline constexpr double kFirstPredictionHoldsSeconds = 0.25;
// Fewer recorded iterations say less than the medians.
inline constexpr std::size_t kRecordedMin = 4;

// ---- what is to be done: MakePlan; PlanOffer and PlanSwitch to every node with ranks, which knows
// the job by a number of its own, so that theirs stays 0; and these ----
struct PlanFailure {
  Code code = Code::kInternal;
  std::string cause;
};
// Something that people should know.
struct PlanNote {
  Code code = Code::kOk;
  std::string text;
};
using PlanningStep = std::variant<MakePlan, PlanOffer, PlanSwitch, PlanFailure, PlanNote>;

class Planning {
 public:
  struct Options {
    std::string job;  // its name
    plan::Policy policy = plan::Policy::kAuto;
    RequestToken token = 0;  // of its MakePlan
    JobShape shape;
    std::optional<CodecChoice> requested_codec{};  // by a person, in an earlier epoch of the job
  };
  explicit Planning(Options options);

  // The layout that all ranks of the node have handed in. `node` is a place in the shape's nodes.
  void OnLayout(std::size_t node, std::shared_ptr<const Layout> layout,
                std::optional<plan::Policy> policy);
  void OnTimesSeen(std::size_t node, NodeSeen seen);
  // The answer to MakePlan.
  void OnPlanMade(const Result<std::shared_ptr<const plan::Plan>>& made);
  // The node's dispatch holds the plan of that version; the last iteration it has begun is that.
  void OnPlanAck(std::size_t node, std::uint32_t version, std::uint64_t hash,
                 std::uint64_t iteration);
  // From now on by that policy, whatever ranks and configuration said.
  void SetPolicy(plan::Policy policy);
  // From now on those gradients so of which no rank said otherwise.
  void SetCodec(const CodecChoice& choice);
  // A rank has gone: no other plan is begun. The first one still is, since gradients that the rank
  // posted before it went wait for it as the others' do.
  void Stop() { stopped_ = true; }

  // What to do since the last call, in order; after a PlanFailure nothing more.
  std::vector<PlanningStep> DrainSteps() { return std::exchange(steps_, {}); }

 private:
  // Where the plan that is under way stands.
  enum class Phase : std::uint8_t { kNone, kMaking, kOffered };
  struct Node {
    bool has_layout = false;
    std::optional<NodeSeen> seen;
    bool reported = false;                  // times, since a plan was last considered
    std::optional<std::uint64_t> answered;  // the iteration with which it holds the offered plan
  };

  bool MakesPlans() const { return !failed_ && (!stopped_ || present_ == nullptr); }
  bool HasLayouts() const;
  bool IsInForce() const;  // on every node, as far as they have reported
  plan::Policy Wanted() const;
  bool Encodes() const;
  std::vector<CodecChoice> WantedCodecs() const;
  void Consider();
  void Make(plan::Policy policy, std::shared_ptr<const plan::Plan> present);
  void Offer(std::shared_ptr<const plan::Plan> plan);
  void SwitchIfAcked();
  void Fail(Code code, std::string cause);
  std::string NameOf(std::size_t node) const;
  double BlockBytes() const;
  double PredictionHoldsSeconds() const;  // that of the plan in force
  void Note(Code code, std::string text);

  Options options_;
  std::vector<Node> nodes_;
  std::shared_ptr<const Layout> layout_;
  std::size_t layout_node_ = 0;              // that handed it in
  std::optional<plan::Policy> rank_policy_;  // by ranks
  std::size_t rank_policy_node_ = 0;
  std::optional<plan::Policy> requested_policy_;  // by a person
  std::optional<CodecChoice> requested_codec_;    // likewise
  std::vector<bool> keeps_codec_;                 // by tensor, as some node's layout has it
  std::uint64_t latest_iteration_ = 0;            // that a node has reported
  std::uint64_t iterations_before_ = 0;           // of earlier epochs, as the layouts say
  bool rails_changed_ = false;                    // on a node, since the plan in force was made
  bool due_ = false;  // what is wanted has changed since a plan was considered
  Phase phase_ = Phase::kNone;
  bool stopped_ = false;
  bool failed_ = false;
  std::uint32_t versions_ = 0;
  std::vector<CodecChoice> codecs_made_for_;  // the plan that is under way
  std::shared_ptr<const plan::Plan> present_;
  std::vector<CodecChoice> present_codecs_;  // that it was made for
  std::uint32_t codec_stops_ = 0;  // plans for those that no longer encoded what the last one did
  bool present_planned_ = false;   // from times that were seen
  std::uint64_t present_from_ = 0;
  std::shared_ptr<const plan::Plan> offered_;
  std::uint64_t offered_hash_ = 0;
  std::string noted_;  // the last note
  std::vector<PlanningStep> steps_;
};

// "job train: plan 2 (exact, 7 blocks; 20 of 62 gradients as int8) from iteration 12 on: 812 ms
// predicted, bound 805 ms; was 990 ms". Of a layout of so many gradients.
std::string DescribeSwitch(const std::string& job, const plan::Plan& plan,
                           std::size_t gradients_count, const PlanSwitch& change);

}  // namespace headrace::service
