#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "client/cli/ctl/job_text.h"
#include "client/cli/ctl/plan_gantt.h"
#include "client/cli/ctl/table.h"
#include "client/cli/ctl/units.h"
#include "client/cli/ctl/views.h"
#include "ipc/base/foreign_text.h"

namespace headrace::ctl {
namespace {

// The width of a terminal that nobody made wider.
constexpr std::size_t kGanttColumns = 80;
// No lane is as fast: blocks of the sizes that were measured took equally long.
constexpr std::uint64_t kNoRate = 1'000'000'000'000;

// How much of the time in which blocks moved the forward pass did not stand still for.
std::optional<double> HiddenShare(const ipc::PlanRow& plan) {
  if (plan.moving_ns <= 0) return std::nullopt;
  const double waited = static_cast<double>(plan.waited_ns) / static_cast<double>(plan.moving_ns);
  return std::clamp(1 - waited, 0.0, 1.0);
}

bool WasMeasured(const ipc::PlanRow& plan) { return plan.measured_ns > 0; }
// The first plan is made before anybody knows how long computing takes: what it comes to by its
// cost line alone is no prediction of an iteration.
bool Predicts(const ipc::PlanRow& plan) {
  return plan.predicted_backward_ns > 0 || plan.predicted_forward_ns > 0;
}
bool HasMoved(const ipc::PlanBlockRow& block) { return block.end_ns > 0; }

std::string Measured(const ipc::PlanRow& plan, TimeNs time_ns) {
  return WasMeasured(plan) ? FormatMilliseconds(time_ns) : "";
}

std::string Deviation(const ipc::PlanRow& plan, TimeNs measured_ns, TimeNs predicted_ns) {
  if (!WasMeasured(plan) || !Predicts(plan) || predicted_ns <= 0) return "";
  const auto predicted = static_cast<double>(predicted_ns);
  return fmt::format("{:+.1f} %", 100 * (static_cast<double>(measured_ns) - predicted) / predicted);
}

// Why a job has no plan, for people.
std::string WhyNone(const ipc::JobRow& job, const ipc::PlanRow* plan) {
  if (job.state == static_cast<std::uint32_t>(ipc::JobState::kFailed)) {
    return fmt::format("the job failed: {}", Printable(ipc::GetText(job.failure)));
  }
  if (plan == nullptr) {
    return "none of its ranks here has handed in a layout; ranks that train with "
           "hr_layout_create or headrace.torch do";
  }
  if (job.state == static_cast<std::uint32_t>(ipc::JobState::kGathering)) {
    return fmt::format(
        "{} of its {} ranks are here, and gradients move when all ranks have handed "
        "in their layout",
        job.ranks_attached, job.world_size);
  }
  return "not all of its ranks have handed in their layout";
}

// The last tensor goes by its place in forward order, because only the first one's name is there.
std::string Tensors(const ipc::PlanBlockRow& block) {
  const std::string_view name = ipc::GetText(block.tensor);
  const std::string first =
      name.empty() ? fmt::format("#{}", block.first_tensor) : std::string(name);
  if (block.last_tensor == block.first_tensor) return first;
  return fmt::format("{} .. #{}", first, block.last_tensor);
}

// What the plan was chosen from, and by how much.
std::string ChoiceText(const ipc::PlanRow& plan) {
  std::string text = fmt::format("Simulated on {} recorded iterations: {}",
                                 plan.recorded_iterations, Printable(ipc::GetText(plan.chosen)));
  if (plan.next_best_ns > 0 && plan.predicted_ns > 0) {
    const double ratio =
        static_cast<double>(plan.next_best_ns) / static_cast<double>(plan.predicted_ns);
    text += fmt::format("; the best of another policy ({}) takes {:.1f} % longer",
                        Printable(ipc::GetText(plan.next_best)), 100 * (ratio - 1));
  }
  return text + ".\n";
}

// What the iteration is predicted to take without and with the codec that was judged.
std::string CodecText(const ipc::PlanRow& plan) {
  const bool used = plan.compressed_tensors > 0;
  const std::string_view codec = ipc::GetText(plan.judged_codec);
  std::string text;
  if (used) {
    text = fmt::format("{} of {} gradients cross between nodes encoded, most as {}.\n",
                       plan.compressed_tensors, plan.tensors, Printable(ipc::GetText(plan.codec)));
  }
  if (codec.empty()) return text;
  const char* const pays = plan.codec_pays != 0 ? "pays"
                           : used               ? "does not pay here"
                                                : "would not pay";
  return text + fmt::format("{} {}: an iteration is predicted to take {} with it and {} without.\n",
                            Printable(codec), pays, FormatMilliseconds(plan.coded_ns),
                            FormatMilliseconds(plan.plain_ns));
}

std::string Heading(const ipc::JobRow& job, const ipc::PlanRow& plan) {
  std::string text = fmt::format(
      "Plan {} of job {} by {}, in force since iteration {}; the last that ended is {}.\n",
      plan.version, Printable(ipc::GetText(job.name)), Printable(ipc::GetText(plan.policy)),
      plan.from_iteration, plan.iteration);
  text += fmt::format("{} gradients, {}, in {} blocks", plan.tensors, FormatBytes(plan.bytes),
                      plan.blocks);
  if (plan.in_flight_max > 0) text += fmt::format(", {} at a time", plan.in_flight_max);
  if (plan.barrier != 0) text += "; the forward pass waits for the last";
  text += fmt::format("; hash {:016x}.\n", plan.hash);
  text += CodecText(plan);
  if (plan.predicted_bytes_per_s >= kNoRate) {
    text +=
        fmt::format("Made for a lane on which a block costs {}, of any size that was measured.\n",
                    FormatMilliseconds(plan.predicted_startup_ns));
  } else if (plan.predicted_bytes_per_s > 0) {
    text += fmt::format("Made for a lane on which a block costs {}, and its bytes go at {}.\n",
                        FormatMilliseconds(plan.predicted_startup_ns),
                        FormatRate(plan.predicted_bytes_per_s, kSecond));
  }
  if (plan.recorded_iterations > 0) text += ChoiceText(plan);
  if (!Predicts(plan))
    text += "Made before it was known how long passes take: nothing is predicted.\n";
  if (plan.next_version != 0) {
    text += plan.next_iteration != 0
                ? fmt::format("Plan {} follows at iteration {}.\n", plan.next_version,
                              plan.next_iteration)
                : fmt::format("Plan {} is being agreed upon.\n", plan.next_version);
  }
  return text;
}

std::string Totals(const ipc::PlanRow& plan, bool with_header) {
  Table table({{"TIME"},
               {"PREDICTED", Align::kRight},
               {"MEASURED", Align::kRight},
               {"DIFFERENCE", Align::kRight}});
  const auto add = [&table, &plan](const char* what, TimeNs predicted_ns, TimeNs measured_ns) {
    table.Add({what, Predicts(plan) && predicted_ns > 0 ? FormatMilliseconds(predicted_ns) : "",
               Measured(plan, measured_ns), Deviation(plan, measured_ns, predicted_ns)});
  };
  // What the loop does besides its passes is no error of the plan, unless it was recorded with
  // them.
  const TimeNs passes_ns = plan.measured_ns - std::min(plan.elsewhere_ns, plan.measured_ns);
  if (plan.recorded_iterations > 0) {
    add("iteration, mean", plan.predicted_ns, plan.measured_mean_ns);
    add("9 of 10 within", plan.predicted_p90_ns, plan.measured_p90_ns);
  } else {
    add("iteration", plan.predicted_ns, passes_ns);
  }
  add("lower bound", plan.lower_bound_ns, passes_ns);
  add("backward", plan.predicted_backward_ns, plan.backward_ns);
  add("forward", plan.predicted_forward_ns, plan.forward_ns);
  add("waited", 0, plan.waited_ns);
  add("moving", 0, plan.moving_ns);
  add("elsewhere", 0, plan.elsewhere_ns);
  add("in all", 0, plan.measured_ns);
  const std::optional<double> hidden = HiddenShare(plan);
  table.Add({"share hidden", "", hidden ? fmt::format("{:.1f} %", 100 * *hidden) : "", ""});
  return table.Render(with_header);
}

std::string Blocks(const Snapshot& snapshot, const ipc::PlanRow& plan, bool with_header) {
  Table table({{"BLOCK", Align::kRight},
               {"BYTES", Align::kRight},
               {"TENSORS"},
               {"PARTS", Align::kRight},
               {"RUNS", Align::kRight},
               {"PREDICTED BEGIN", Align::kRight},
               {"END", Align::kRight},
               {"READY", Align::kRight},
               {"MEASURED BEGIN", Align::kRight},
               {"END", Align::kRight},
               {"DIFFERENCE", Align::kRight}});
  for (const ipc::PlanBlockRow& block : snapshot.plan_blocks) {
    if (block.job_id != plan.job_id) continue;
    const bool moved = HasMoved(block);
    const bool predicts = Predicts(plan);
    table.Add({std::to_string(block.index + 1), FormatBytes(block.bytes), Tensors(block),
               std::to_string(block.parts), std::to_string(block.runs),
               predicts ? FormatMilliseconds(block.predicted_begin_ns) : "",
               predicts ? FormatMilliseconds(block.predicted_end_ns) : "",
               moved ? FormatMilliseconds(block.ready_ns) : "",
               moved ? FormatMilliseconds(block.begin_ns) : "",
               moved ? FormatMilliseconds(block.end_ns) : "",
               moved && predicts ? FormatDifference(block.end_ns - block.predicted_end_ns) : ""});
  }
  std::string text = table.Render(with_header);
  if (plan.rows_left_out > 0 && with_header) {
    text += fmt::format("{} more blocks found no free row on the board.\n", plan.rows_left_out);
  }
  return text;
}

std::string Picture(const Snapshot& snapshot, const ipc::PlanRow& plan, bool utf8) {
  if (Predicts(plan)) return PlanGantt(snapshot, plan, kGanttColumns, utf8);
  Snapshot measured = snapshot;
  for (ipc::PlanBlockRow& block : measured.plan_blocks) {
    if (block.job_id == plan.job_id) block.predicted_begin_ns = block.predicted_end_ns = 0;
  }
  ipc::PlanRow row = plan;
  row.predicted_ns = 0;
  return PlanGantt(measured, row, kGanttColumns, utf8);
}

Json BlockJson(const ipc::PlanBlockRow& block) {
  const bool moved = HasMoved(block);
  const auto measured = [moved](TimeNs time_ns) { return moved ? Json(time_ns) : Json(nullptr); };
  return {{"index", block.index},
          {"bytes", block.bytes},
          {"first_tensor", block.first_tensor},
          {"last_tensor", block.last_tensor},
          {"tensor", JsonText(ipc::GetText(block.tensor))},
          {"parts", block.parts},
          {"runs", block.runs},
          {"predicted_begin_ns", block.predicted_begin_ns},
          {"predicted_end_ns", block.predicted_end_ns},
          {"ready_ns", measured(block.ready_ns)},
          {"begin_ns", measured(block.begin_ns)},
          {"end_ns", measured(block.end_ns)}};
}

Json OnePlanJson(const Snapshot& snapshot, const ipc::PlanRow& plan) {
  const bool measured = WasMeasured(plan);
  const auto time = [measured](TimeNs time_ns) { return measured ? Json(time_ns) : Json(nullptr); };
  const std::optional<double> hidden = HiddenShare(plan);
  const bool recorded = plan.recorded_iterations > 0;
  const bool others = recorded && plan.next_best_ns > 0;
  const std::string_view judged = ipc::GetText(plan.judged_codec);
  Json blocks = Json::array();
  for (const ipc::PlanBlockRow& block : snapshot.plan_blocks) {
    if (block.job_id == plan.job_id) blocks.push_back(BlockJson(block));
  }
  return {{"version", plan.version},
          {"policy", JsonText(ipc::GetText(plan.policy))},
          {"hash", fmt::format("{:016x}", plan.hash)},
          {"from_iteration", plan.from_iteration},
          {"iteration", plan.iteration},
          {"tensors", plan.tensors},
          {"bytes", plan.bytes},
          {"block_count", plan.blocks},
          {"barrier", plan.barrier != 0},
          {"in_flight_max", plan.in_flight_max},
          {"next_version", plan.next_version != 0 ? Json(plan.next_version) : Json(nullptr)},
          {"next_iteration", plan.next_iteration != 0 ? Json(plan.next_iteration) : Json(nullptr)},
          {"predicted_ns", plan.predicted_ns},
          {"predicted_p90_ns", recorded ? Json(plan.predicted_p90_ns) : Json(nullptr)},
          {"recorded_iterations", plan.recorded_iterations},
          {"chosen", recorded ? Json(JsonText(ipc::GetText(plan.chosen))) : Json(nullptr)},
          {"next_best", others ? Json(JsonText(ipc::GetText(plan.next_best))) : Json(nullptr)},
          {"next_best_ns", others ? Json(plan.next_best_ns) : Json(nullptr)},
          {"compressed_tensors", plan.compressed_tensors},
          {"codec",
           plan.compressed_tensors > 0 ? Json(JsonText(ipc::GetText(plan.codec))) : Json(nullptr)},
          {"judged_codec", judged.empty() ? Json(nullptr) : Json(JsonText(judged))},
          {"codec_pays", judged.empty() ? Json(nullptr) : Json(plan.codec_pays != 0)},
          {"predicted_plain_ns", judged.empty() ? Json(nullptr) : Json(plan.plain_ns)},
          {"predicted_coded_ns", judged.empty() ? Json(nullptr) : Json(plan.coded_ns)},
          {"lower_bound_ns", plan.lower_bound_ns},
          {"predicted_backward_ns", plan.predicted_backward_ns},
          {"predicted_forward_ns", plan.predicted_forward_ns},
          {"predicted_startup_ns", plan.predicted_startup_ns},
          {"predicted_bytes_per_s", plan.predicted_bytes_per_s},
          {"measured_ns", time(plan.measured_ns)},
          {"measured_mean_ns", time(plan.measured_mean_ns)},
          {"measured_p90_ns", time(plan.measured_p90_ns)},
          {"backward_ns", time(plan.backward_ns)},
          {"forward_ns", time(plan.forward_ns)},
          {"waited_ns", time(plan.waited_ns)},
          {"moving_ns", time(plan.moving_ns)},
          {"elsewhere_ns", time(plan.elsewhere_ns)},
          {"hidden_share", hidden ? Json(*hidden) : Json(nullptr)},
          {"rows_left_out", plan.rows_left_out},
          {"blocks", std::move(blocks)}};
}

}  // namespace

std::string PlanTable(const Snapshot& snapshot, std::string_view job, bool with_header, bool utf8) {
  std::string text;
  for (const ipc::JobRow& row : snapshot.jobs) {
    if (ipc::GetText(row.name) != job) continue;
    if (!text.empty()) text += '\n';
    const ipc::PlanRow* plan = snapshot.FindPlan(row.id);
    if (plan == nullptr || plan->version == 0) {
      text += fmt::format("Job {} has no plan yet: {}.\n", Printable(job), WhyNone(row, plan));
      continue;
    }
    if (with_header) text += Heading(row, *plan) + '\n';
    text += Totals(*plan, with_header) + '\n' + Blocks(snapshot, *plan, with_header);
    if (with_header) text += '\n' + Picture(snapshot, *plan, utf8);
  }
  return text;
}

Json IterationsJson(const ipc::PlanRow* plan) {
  if (plan == nullptr || plan->iterations_count == 0) return nullptr;
  const bool measured = WasMeasured(*plan);
  const bool predicts = Predicts(*plan);
  return {{"count", plan->iterations_count},
          {"total_ns", plan->iterations_ns},
          {"waited_ns", plan->iterations_waited_ns},
          {"moving_ns", plan->iterations_moving_ns},
          {"measured_ns", measured ? Json(plan->measured_ns) : Json(nullptr)},
          {"elsewhere_ns", measured ? Json(plan->elsewhere_ns) : Json(nullptr)},
          {"predicted_ns", predicts ? Json(plan->predicted_ns) : Json(nullptr)},
          {"lower_bound_ns", predicts ? Json(plan->lower_bound_ns) : Json(nullptr)}};
}

Json PlanJson(const Snapshot& snapshot, std::string_view job) {
  Json jobs = Json::array();
  for (const ipc::JobRow& row : snapshot.jobs) {
    if (ipc::GetText(row.name) != job) continue;
    const ipc::PlanRow* plan = snapshot.FindPlan(row.id);
    const bool has_plan = plan != nullptr && plan->version != 0;
    jobs.push_back({{"id", row.id},
                    {"name", JsonText(ipc::GetText(row.name))},
                    {"why_none", has_plan ? "" : JsonText(WhyNone(row, plan))},
                    {"plan", has_plan ? OnePlanJson(snapshot, *plan) : Json(nullptr)}});
  }
  return {{"rows_unread", snapshot.rows_unread}, {"jobs", std::move(jobs)}};
}

}  // namespace headrace::ctl
