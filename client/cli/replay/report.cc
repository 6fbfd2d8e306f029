#include "client/cli/replay/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "client/cli/ctl/table.h"
#include "client/cli/ctl/units.h"
#include "ipc/base/check.h"
#include "ipc/base/foreign_text.h"

namespace headrace::replay {
namespace {

constexpr double kNanosecond = 1e-9;

// The smallest value that is not less than `share` of all.
double Quantile(std::vector<double> values, double share) {
  HR_CHECK(!values.empty() && share >= 0 && share <= 1, values.size(), share);
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(share * static_cast<double>(values.size()));
  const auto index = static_cast<std::size_t>(std::max(rank, 1.0)) - 1;
  return values[std::min(index, values.size() - 1)];
}

// For each iteration, the time of the rank for which it was longest.
std::vector<double> Slowest(const std::vector<RankResult>& ranks, TimeNs Iteration::*time) {
  HR_CHECK(!ranks.empty());
  std::vector<double> slowest(ranks.front().result.iterations.size(), 0.0);
  for (const RankResult& rank : ranks) {
    HR_CHECK(rank.result.iterations.size() >= slowest.size(), rank.result.iterations.size());
    for (std::size_t i = 0; i < slowest.size(); ++i) {
      const TimeNs time_ns = rank.result.iterations[i].*time;
      slowest[i] = std::max(slowest[i], static_cast<double>(time_ns) * kNanosecond);
    }
  }
  return slowest;
}

double Median(const std::vector<double>& values) { return Quantile(values, 0.5); }

std::optional<double> HiddenShare(const Summary& summary, const FinalBoard& board) {
  if (!board.plan || board.plan->moving_ns <= 0) return std::nullopt;
  const double moving_s = static_cast<double>(board.plan->moving_ns) * kNanosecond;
  return std::clamp(1 - summary.waited_s / moving_s, 0.0, 1.0);
}

std::string Milliseconds(double seconds) {
  return ctl::FormatMilliseconds(std::llround(seconds / kNanosecond));
}

std::string Times(double measured_s, TimeNs other_ns) {
  if (other_ns <= 0) return "";
  return fmt::format("measured is {:.3f} of it",
                     measured_s / (static_cast<double>(other_ns) * kNanosecond));
}

std::uint64_t ValuesChecked(const std::vector<RankResult>& ranks) {
  std::uint64_t checked = UINT64_MAX;
  for (const RankResult& rank : ranks) checked = std::min(checked, rank.result.values_checked);
  return checked;
}

std::string ValuesText(const std::vector<RankResult>& ranks) {
  const std::uint64_t checked = ValuesChecked(ranks);
  if (checked == 0) {
    return "Values were not looked at: sums of so many ranks are not exact in this type.\n";
  }
  return fmt::format("Every element was the exact average of all ranks in {} iterations.\n",
                     checked);
}

std::string LanesText(const std::vector<ipc::LaneRow>& lanes) {
  std::string text;
  for (const ipc::LaneRow& lane : lanes) {
    text += fmt::format("Lane {} ({}): ", Printable(ipc::GetText(lane.name)),
                        Printable(ipc::GetText(lane.transport)));
    text += lane.bytes_per_s == 0 ? "no cost line yet.\n"
                                  : fmt::format("a stage costs {:.1f} us and {} more.\n",
                                                static_cast<double>(lane.startup_ns) / kMicrosecond,
                                                ctl::FormatRate(lane.bytes_per_s, kSecond));
  }
  return text;
}

std::string PlanText(const FinalBoard& board) {
  if (!board.plan) return "The board shows no plan of the job.\n";
  const ipc::PlanRow& plan = *board.plan;
  return fmt::format("Plan {} by {}: {} blocks, hash {:016x}, in force since iteration {}.\n",
                     plan.version, Printable(ipc::GetText(plan.policy)), plan.blocks, plan.hash,
                     plan.from_iteration);
}

Json LanesJson(const std::vector<ipc::LaneRow>& lanes) {
  Json json = Json::array();
  for (const ipc::LaneRow& lane : lanes) {
    const bool known = lane.bytes_per_s != 0;
    json.push_back({{"lane", Printable(ipc::GetText(lane.name))},
                    {"transport", Printable(ipc::GetText(lane.transport))},
                    {"startup_ns", known ? Json(lane.startup_ns) : Json(nullptr)},
                    {"bytes_per_s", known ? Json(lane.bytes_per_s) : Json(nullptr)}});
  }
  return json;
}

// Null where the board had nothing.
Json Seconds(const FinalBoard& board, TimeNs ipc::PlanRow::*time) {
  if (!board.plan) return nullptr;
  return static_cast<double>((*board.plan).*time) * kNanosecond;
}

}  // namespace

Summary Summarize(const std::vector<RankResult>& ranks) {
  Summary summary;
  summary.iterations_s = Slowest(ranks, &Iteration::whole_ns);
  summary.median_s = Median(summary.iterations_s);
  summary.least_s = Quantile(summary.iterations_s, 0);
  summary.p90_s = Quantile(summary.iterations_s, 0.9);
  summary.backward_s = Median(Slowest(ranks, &Iteration::backward_ns));
  summary.forward_s = Median(Slowest(ranks, &Iteration::forward_ns));
  summary.waited_s = Median(Slowest(ranks, &Iteration::waited_ns));
  return summary;
}

std::string ReportText(const Heading& heading, const std::vector<RankResult>& ranks) {
  const Summary summary = Summarize(ranks);
  const ReplayResult& first = ranks.front().result;
  const FinalBoard& board = ranks.front().board;
  std::string text = fmt::format(
      "{}: {} gradients, {}, {}; {} ranks; times x {:g}, jitter {:g} %; {} iterations after {} to "
      "warm up.\n\n",
      Printable(heading.model), heading.tensors, ctl::FormatBytes(heading.bytes),
      Name(heading.dtype), heading.world_size, heading.scale, 100 * heading.jitter,
      first.iterations.size(), first.warmup);
  ctl::Table table({{"TIME"}, {"MEDIAN", ctl::Align::kRight}, {""}});
  table.Add({"measured", Milliseconds(summary.median_s),
             fmt::format("least {}, nine of ten within {}", Milliseconds(summary.least_s),
                         Milliseconds(summary.p90_s))});
  if (board.plan) {
    const ipc::PlanRow& plan = *board.plan;
    table.Add({"predicted", ctl::FormatMilliseconds(plan.predicted_ns),
               Times(summary.median_s, plan.predicted_ns)});
    table.Add({"lower bound", ctl::FormatMilliseconds(plan.lower_bound_ns),
               Times(summary.median_s, plan.lower_bound_ns)});
  }
  table.Add({"backward", Milliseconds(summary.backward_s), "slowest rank"});
  table.Add({"forward", Milliseconds(summary.forward_s), "slowest rank, without waits"});
  const std::optional<double> hidden = HiddenShare(summary, board);
  table.Add({"waited", Milliseconds(summary.waited_s),
             hidden ? fmt::format("{:.1f} % of {} of communication was hidden", 100 * *hidden,
                                  ctl::FormatMilliseconds(board.plan->moving_ns))
                    : ""});
  return text + table.Render(true) + '\n' + PlanText(board) + LanesText(board.lanes) +
         ValuesText(ranks);
}

Json ReportJson(const Heading& heading, const std::vector<RankResult>& ranks) {
  const Summary summary = Summarize(ranks);
  const ReplayResult& first = ranks.front().result;
  const FinalBoard& board = ranks.front().board;
  const bool all_ranks = ranks.size() == heading.world_size;
  const std::optional<double> hidden = HiddenShare(summary, board);
  const auto of_plan = [&board](auto field) {
    return board.plan ? Json((*board.plan).*field) : Json(nullptr);
  };
  return {
      {"model", Printable(heading.model)},
      {"tensors", heading.tensors},
      {"bytes", heading.bytes},
      {"dtype", Name(heading.dtype)},
      {"rank", all_ranks ? Json(nullptr) : Json(ranks.front().rank)},
      {"world_size", heading.world_size},
      {"scale", heading.scale},
      {"jitter", heading.jitter},
      {"measured_s", summary.median_s},
      {"least_s", summary.least_s},
      {"p90_s", summary.p90_s},
      {"predicted_s", Seconds(board, &ipc::PlanRow::predicted_ns)},
      {"lower_bound_s", Seconds(board, &ipc::PlanRow::lower_bound_ns)},
      {"hidden_share", hidden ? Json(*hidden) : Json(nullptr)},
      {"waited_s", summary.waited_s},
      {"backward_s", summary.backward_s},
      {"forward_s", summary.forward_s},
      {"moving_s", Seconds(board, &ipc::PlanRow::moving_ns)},
      {"policy", board.plan ? Json(Printable(ipc::GetText(board.plan->policy))) : Json(nullptr)},
      {"plan_version", of_plan(&ipc::PlanRow::version)},
      {"plan_hash", board.plan ? Json(fmt::format("{:016x}", board.plan->hash)) : Json(nullptr)},
      {"blocks", of_plan(&ipc::PlanRow::blocks)},
      {"lanes", LanesJson(board.lanes)},
      {"warmup_iterations", first.warmup},
      {"values_checked", ValuesChecked(ranks)},
      {"iterations_s", summary.iterations_s}};
}

}  // namespace headrace::replay
