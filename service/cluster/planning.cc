#include "service/cluster/planning.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "ipc/base/check.h"
#include "service/cluster/plan_text.h"
#include "service/peers/messages.h"
#include "service/plan/canonical.h"
#include "service/plan/choose_codecs.h"

namespace headrace::service {
namespace {

std::string Duration(double seconds) {
  const double ms = seconds * 1e3;
  return ms >= 100 ? fmt::format("{:.0f} ms", ms)
         : ms >= 1 ? fmt::format("{:.1f} ms", ms)
                   : fmt::format("{:.3f} ms", ms);
}

// "; 20 of 62 gradients as int8, 1 as bf16"
std::string DescribeCodecs(const plan::Plan& plan, std::size_t gradients_count) {
  std::vector<std::pair<Codec, std::uint64_t>> counts;
  for (const plan::CodecRun& run : plan.codecs) {
    const auto found =
        std::ranges::find(counts, run.codec, [](const auto& pair) { return pair.first; });
    if (found != counts.end()) {
      found->second += run.count;
    } else {
      counts.emplace_back(run.codec, run.count);
    }
  }
  std::string text;
  for (const auto& [codec, count] : counts) {
    text += text.empty()
                ? fmt::format("; {} of {} gradients as {}", count, gradients_count, Name(codec))
                : fmt::format(", {} as {}", count, Name(codec));
  }
  return text;
}

// Lists each codec once.
std::vector<Codec> CodecsIn(const std::vector<CodecChoice>& choices) {
  std::vector<Codec> codecs;
  const auto add = [&codecs](const Codec& codec) {
    const bool known = std::ranges::find(codecs, codec) != codecs.end();
    if (codec != Codec::kNone && !known) codecs.push_back(codec);
  };
  for (const CodecChoice& choice : choices) {
    add(choice.codec);
    for (const Codec& codec : choice.allowed.List()) add(codec);
  }
  return codecs;
}

std::string DescribeVerdict(const plan::CodecVerdict& verdict) {
  if (!verdict.exists()) return "";
  return fmt::format("; {} {}: an iteration takes {} with it, {} without", Name(verdict.cost.codec),
                     verdict.pays ? "pays" : "does not pay", Duration(verdict.coded_s),
                     Duration(verdict.plain_s));
}

}  // namespace

Planning::Planning(Options options)
    : options_(std::move(options)),
      nodes_(options_.shape.nodes.size()),
      requested_codec_(options_.requested_codec) {
  HR_CHECK(!nodes_.empty(), options_.job);
}

std::string Planning::NameOf(std::size_t node) const {
  const JobShape::Node& named = options_.shape.nodes[node];
  const std::uint32_t rank = named.ranks.empty() ? 0 : named.ranks.front();
  return fmt::format("rank {} on node {}", rank, named.name);
}

void Planning::Fail(Code code, std::string cause) {
  failed_ = true;
  phase_ = Phase::kNone;
  steps_.emplace_back(PlanFailure{code, std::move(cause)});
}

void Planning::OnLayout(std::size_t node, std::shared_ptr<const Layout> layout,
                        std::optional<plan::Policy> policy) {
  HR_CHECK(node < nodes_.size() && layout != nullptr, node);
  if (!MakesPlans() || nodes_[node].has_layout) return;
  iterations_before_ = std::max(iterations_before_, layout->iterations_before);
  keeps_codec_.resize(std::max(keeps_codec_.size(), layout->tensors.size()));
  for (std::size_t i = 0; i < layout->tensors.size(); ++i) {
    if (layout->tensors[i].keeps_codec) keeps_codec_[i] = true;
  }
  if (layout_ == nullptr) {
    layout_ = std::move(layout);
    layout_node_ = node;
  } else if (Status same = CompareLayouts(*layout_, NameOf(layout_node_), *layout, NameOf(node));
             !same) {
    return Fail(same.code(), same.error().text());
  }
  if (policy && rank_policy_ && *policy != *rank_policy_) {
    return Fail(
        Code::kMismatch,
        fmt::format("{} asks for the policy {} and {} for {}: ranks that name one name the "
                    "same",
                    NameOf(rank_policy_node_), Name(*rank_policy_), NameOf(node), Name(*policy)));
  }
  if (policy && !rank_policy_) {
    rank_policy_ = policy;
    rank_policy_node_ = node;
  }
  nodes_[node].has_layout = true;
  Consider();
}

void Planning::OnTimesSeen(std::size_t node, NodeSeen seen) {
  HR_CHECK(node < nodes_.size(), node);
  // There are none before the first plan is in force.
  if (!MakesPlans() || layout_ == nullptr || present_ == nullptr) return;
  if (Status status = CheckSeen(seen, *layout_, options_.shape); !status) {
    return Fail(status.code(), fmt::format("node {} reported {}", options_.shape.nodes[node].name,
                                           status.error().text()));
  }
  latest_iteration_ = std::max(latest_iteration_, seen.times.iteration);
  // What others have reported is of before, or is reported once more.
  if (seen.rails_changed && !std::exchange(rails_changed_, true)) {
    for (Node& each : nodes_) each.reported = false;
  }
  nodes_[node].seen = std::move(seen);
  nodes_[node].reported = true;
  // The iterations that cross as they are may be over.
  if (present_codecs_ != WantedCodecs()) due_ = true;
  Consider();
}

void Planning::SetPolicy(plan::Policy policy) {
  requested_policy_ = policy;
  due_ = true;
  Consider();
}

void Planning::SetCodec(const CodecChoice& choice) {
  requested_codec_ = choice;
  if (!Encodes()) {
    return Note(Code::kInvalidArgument,
                "its gradients are not compressed: all of its ranks are on one node");
  }
  if (layout_ != nullptr && std::ranges::all_of(keeps_codec_, std::identity())) {
    return Note(
        Code::kInvalidArgument,
        "its gradients stay as they are: ranks chose a codec for each by name, or it lies on a "
        "GPU, is small, or is not of float32");
  }
  const auto fits = [&choice](const LayoutTensor& tensor) {
    return !FittingChoice(tensor, choice).is_none();
  };
  if (layout_ != nullptr && !choice.is_none() && std::ranges::none_of(layout_->tensors, fits)) {
    Note(Code::kInvalidArgument,
         fmt::format("its gradients cross as they are: none is a matrix that {} takes",
                     ChoiceName(choice)));
  }
  due_ = true;
  Consider();
}

// Alone, a node has nothing to encode for, whoever else is there.
bool Planning::Encodes() const { return options_.shape.nodes.size() > 1; }

// By what ranks and people said so far; empty: nothing is encoded. Before it is known how long
// everything takes, nothing is left to a plan.
std::vector<CodecChoice> Planning::WantedCodecs() const {
  HR_CHECK(layout_ != nullptr && keeps_codec_.size() >= layout_->tensors.size(), options_.job,
           keeps_codec_.size());
  if (!Encodes() || iterations_before_ + latest_iteration_ < layout_->compress_after) return {};
  std::vector<CodecChoice> choices;
  for (std::size_t i = 0; i < layout_->tensors.size(); ++i) {
    const bool requested = requested_codec_ && !keeps_codec_[i];
    choices.push_back(FittingChoice(layout_->tensors[i],
                                    requested ? *requested_codec_ : layout_->tensors[i].Choice()));
    if (present_ == nullptr) choices.back().allowed = {};
  }
  const auto is_none = [](const CodecChoice& choice) { return choice.is_none(); };
  return std::ranges::all_of(choices, is_none) ? std::vector<CodecChoice>() : choices;
}

plan::Policy Planning::Wanted() const {
  return requested_policy_ ? *requested_policy_ : rank_policy_ ? *rank_policy_ : options_.policy;
}

bool Planning::HasLayouts() const {
  return std::all_of(nodes_.begin(), nodes_.end(),
                     [](const Node& node) { return node.has_layout; });
}

bool Planning::IsInForce() const {
  return std::all_of(nodes_.begin(), nodes_.end(), [this](const Node& node) {
    return node.seen && node.seen->times.iteration >= present_from_;
  });
}

// Decides whether a plan is to be made now.
void Planning::Consider() {
  if (!MakesPlans() || phase_ != Phase::kNone || !HasLayouts()) return;
  if (present_ == nullptr) return Make(plan::Policy::kWfbp, nullptr);
  if (!IsInForce()) return;
  const plan::Policy wanted = Wanted();
  const bool same_way =
      present_planned_ && present_->policy == wanted && present_codecs_ == WantedCodecs();
  const bool all_reported =
      std::all_of(nodes_.begin(), nodes_.end(), [](const Node& node) { return node.reported; });
  // Another policy need not wait for new times, drift shows in them only.
  const bool due = std::exchange(due_, false) && !same_way;
  // The one in force was made for other wires.
  const bool rails_changed = all_reported && std::exchange(rails_changed_, false);
  if (all_reported || due) Make(wanted, same_way && !rails_changed ? present_ : nullptr);
}

double Planning::BlockBytes() const {
  std::uint64_t bytes = 0;
  for (const LayoutTensor& tensor : layout_->tensors) bytes += tensor.Bytes();
  const std::size_t blocks =
      present_ == nullptr ? layout_->tensors.size() : present_->blocks.size();
  return static_cast<double>(bytes) / static_cast<double>(std::max<std::size_t>(blocks, 1));
}

double Planning::PredictionHoldsSeconds() const {
  // The first plan predicts nothing.
  const int doublings = static_cast<int>(std::clamp(versions_, 2U, 30U)) - 2;
  return std::min(kPredictionHoldsSeconds, std::ldexp(kFirstPredictionHoldsSeconds, doublings));
}

void Planning::Make(plan::Policy policy, std::shared_ptr<const plan::Plan> present) {
  HR_CHECK(phase_ == Phase::kNone && layout_ != nullptr, options_.job, static_cast<int>(phase_));
  std::vector<NodeSeen> seen;
  for (Node& node : nodes_) {
    if (node.seen) seen.push_back(*node.seen);
    node.reported = false;
  }
  phase_ = Phase::kMaking;
  plan::Recording recording = MergeRecorded(seen);
  if (recording.iterations.size() < kRecordedMin) recording = {};
  plan::Route route = RouteOf(options_.shape, seen, BlockBytes());
  codecs_made_for_ = WantedCodecs();
  if (!codecs_made_for_.empty()) {
    AddCodecs(route, options_.shape, seen, CodecsIn(codecs_made_for_));
  }
  AddRuns(route, options_.shape, *layout_);
  const IterationSeen iteration = IterationOf(seen);
  std::uint64_t latest = 0;
  for (const NodeSeen& each : seen) latest = std::max(latest, each.times.iteration);
  const double in_force_s =
      static_cast<double>(latest - std::min(latest, present_from_)) * iteration.iteration_s;
  const double tolerance = in_force_s >= PredictionHoldsSeconds()
                               ? kPredictionTolerance
                               : std::numeric_limits<double>::infinity();
  steps_.emplace_back(MakePlan{.token = options_.token,
                               .policy = policy,
                               .profile = MergeTimes(options_.job, *layout_, seen),
                               .route = std::move(route),
                               .recording = std::move(recording),
                               .codecs = codecs_made_for_,
                               .version = versions_ + 1,
                               .present = std::move(present),
                               .iteration_s = iteration.iteration_s,
                               .running_s = iteration.running_s,
                               .margin = kPlanMargin,
                               .tolerance = tolerance,
                               .codec_stops = codec_stops_});
}

void Planning::OnPlanMade(const Result<std::shared_ptr<const plan::Plan>>& made) {
  if (phase_ != Phase::kMaking) return;
  phase_ = Phase::kNone;
  if (!MakesPlans()) return;
  if (made.ok() && *made != nullptr) {
    // Others may have been wanted since it was begun.
    if (codecs_made_for_ == WantedCodecs()) return Offer(*made);
    due_ = true;
    return Consider();
  }
  if (!made.ok() && present_ == nullptr) {
    return Fail(made.error().code(), made.error().Within("make the first plan").text());
  }
  if (!made.ok()) {
    Note(made.error().code(),
         fmt::format("no new plan, plan {} stays: {}", present_->version, made.error().text()));
  }
  // Something else may have been wanted meanwhile.
  Consider();
}

// The same again and again would bury the rest.
void Planning::Note(Code code, std::string text) {
  if (noted_ == text) return;
  noted_ = text;
  steps_.emplace_back(PlanNote{code, fmt::format("job {}: {}", options_.job, text)});
}

void Planning::Offer(std::shared_ptr<const plan::Plan> plan) {
  HR_CHECK(phase_ == Phase::kNone && plan != nullptr, options_.job, static_cast<int>(phase_));
  if (Status covers = CheckPlan(*plan, *layout_, options_.shape.halves); !covers) {
    return Fail(Code::kInternal, covers.error().text());
  }
  const std::string text = plan::Canonical(*plan);
  if (text.size() > kPlanTextMax) {
    const std::string cause = fmt::format(
        "plan {} ({}, {} blocks) takes {} bytes, nodes tell each other at most {}", plan->version,
        Name(plan->policy), plan->blocks.size(), text.size(), kPlanTextMax);
    if (present_ == nullptr) return Fail(Code::kExhausted, cause);
    Note(Code::kExhausted, fmt::format("{}; plan {} stays", cause, present_->version));
    return Consider();
  }
  // Nodes tell plans apart by their version.
  HR_CHECK(plan->version > versions_, options_.job, plan->version, versions_);
  versions_ = plan->version;
  phase_ = Phase::kOffered;
  for (Node& node : nodes_) node.answered.reset();
  offered_hash_ = plan::HashOf(text);
  offered_ = std::move(plan);
  steps_.emplace_back(PlanOffer{.job = {}, .plan = offered_, .hash = offered_hash_});
}

void Planning::OnPlanAck(std::size_t node, std::uint32_t version, std::uint64_t hash,
                         std::uint64_t iteration) {
  HR_CHECK(node < nodes_.size(), node);
  if (phase_ != Phase::kOffered || version != offered_->version || nodes_[node].answered) return;
  if (hash != offered_hash_) {
    return Fail(
        Code::kMismatch,
        fmt::format("node {} holds plan {} of job {} with the hash {:016x}, its leader has "
                    "{:016x}: install the same release on both",
                    options_.shape.nodes[node].name, version, options_.job, hash, offered_hash_));
  }
  nodes_[node].answered = iteration;
  SwitchIfAcked();
}

void Planning::SwitchIfAcked() {
  HR_CHECK(phase_ == Phase::kOffered && offered_ != nullptr, options_.job,
           static_cast<int>(phase_));
  HR_CHECK(offered_->version == versions_, options_.job, offered_->version, versions_);
  std::uint64_t latest = 0;
  for (const Node& node : nodes_) {
    if (!node.answered) return;
    latest = std::max(latest, *node.answered);
  }
  double before_s = 0;
  for (const Node& node : nodes_) {
    if (node.seen) before_s = std::max(before_s, node.seen->times.iteration_s);
  }
  present_planned_ = present_ != nullptr;
  present_from_ = present_ == nullptr ? 1 : latest + kSwitchSlack;
  const bool same_codecs = present_codecs_ == codecs_made_for_;
  // Where nothing is left to the plan, its verdict is for people only.
  const bool stops = plan::LeaveCodecsToPlan(codecs_made_for_) && present_ != nullptr &&
                     present_->verdict.pays && !offered_->verdict.pays;
  codec_stops_ = same_codecs ? codec_stops_ + (stops ? 1 : 0) : 0;
  present_ = std::exchange(offered_, nullptr);
  present_codecs_ = codecs_made_for_;
  phase_ = Phase::kNone;
  for (Node& node : nodes_) node.reported = false;
  steps_.emplace_back(PlanSwitch{.job = {},
                                 .version = present_->version,
                                 .from_iteration = present_from_,
                                 .before_s = before_s,
                                 .iterations_before = iterations_before_});
}

std::string DescribeSwitch(const std::string& job, const plan::Plan& plan,
                           std::size_t gradients_count, const PlanSwitch& change) {
  const std::string as = DescribeCodecs(plan, gradients_count);
  const std::string head = fmt::format(
      "job {}: plan {} ({}, {} {}{}) from iteration {} on", job, plan.version, Name(plan.policy),
      plan.blocks.size(), plan.blocks.size() == 1 ? "block" : "blocks", as, change.from_iteration);
  if (plan.version == 1) return head + ", until it is known how long everything takes";
  const std::string text = fmt::format("{}: {} predicted, bound {}", head,
                                       Duration(plan.predicted_s), Duration(plan.lower_bound_s));
  const std::string was =
      change.before_s > 0 ? fmt::format("; was {}", Duration(change.before_s)) : "";
  return text + was + DescribeVerdict(plan.verdict);
}

}  // namespace headrace::service
