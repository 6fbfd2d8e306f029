#include "client/cli/replay/trace.h"

#include <fmt/format.h>

#include <algorithm>

#include "client/cli/ctl/table.h"
#include "client/cli/ctl/trace_events.h"
#include "ipc/base/foreign_text.h"

namespace headrace::replay {
namespace {

using Json = ctl::TraceEvents::Json;

// Rows stand in the order of these numbers.
constexpr int kComputing = 1;
constexpr int kWaiting = 2;

// Converts times in arguments; the trace converts those of slices itself.
double Microseconds(TimeNs time_ns) { return static_cast<double>(time_ns) / kMicrosecond; }

std::string NameOf(Activity::Kind kind, const std::string& tensor) {
  switch (kind) {
    case Activity::Kind::kBackward:
      return "backward " + tensor;
    case Activity::Kind::kWait:
      return "wait " + tensor;
    case Activity::Kind::kForward:
      return "forward " + tensor;
  }
  return tensor;
}

void AddRank(const Profile& profile, std::uint32_t rank, const IterationTrace& played,
             TimeNs origin_ns, ctl::TraceEvents& trace) {
  trace.NameProcess(rank, fmt::format("rank {}", rank));
  trace.NameTrack(rank, kComputing, "computing");
  trace.NameTrack(rank, kWaiting, "waiting");
  for (const Activity& span : played.spans) {
    const int row = span.kind == Activity::Kind::kWait ? kWaiting : kComputing;
    trace.Slice(rank, row, NameOf(span.kind, profile.tensors[span.tensor].name),
                span.begin_ns - origin_ns, span.end_ns - origin_ns);
  }
}

Json ArgsOf(const ipc::PlanBlockRow& block) {
  return {{"bytes", block.bytes},
          {"tensor", Printable(ipc::GetText(block.tensor))},
          {"first_tensor", block.first_tensor},
          {"last_tensor", block.last_tensor},
          {"ready_us", Microseconds(block.ready_ns)},
          {"predicted_begin_us", Microseconds(block.predicted_begin_ns)},
          {"predicted_end_us", Microseconds(block.predicted_end_ns)}};
}

// Blocks that move at the same time stand in rows of their own.
void AddBlocks(const FinalBoard& board, std::uint32_t process, ctl::TraceEvents& trace) {
  trace.NameProcess(process, "blocks of the plan");
  ctl::TraceRows rows;
  for (const ipc::PlanBlockRow& block : board.blocks) {
    if (block.end_ns == 0) continue;  // it has not moved
    const int row = 1 + static_cast<int>(rows.RowFor(block.begin_ns, block.end_ns));
    trace.Slice(process, row, fmt::format("block {}", block.index + 1), block.begin_ns,
                block.end_ns, ArgsOf(block));
  }
  for (std::size_t i = 0; i < rows.count(); ++i) {
    trace.NameTrack(process, 1 + static_cast<int>(i), "moving");
  }
}

}  // namespace

std::string TraceJson(const Profile& profile, const std::vector<RankResult>& ranks) {
  const ReplayResult& first = ranks.front().result;
  const FinalBoard& board = ranks.front().board;
  const std::uint64_t last = first.warmup + first.iterations.size();
  const std::uint64_t shown = board.plan ? board.plan->iteration : 0;
  const bool is_shown = shown != 0 && first.trace(shown).iteration == shown;
  const std::uint64_t iteration = is_shown ? shown : last;
  TimeNs origin_ns = 0;
  std::uint32_t highest = 0;
  for (const RankResult& rank : ranks) {
    origin_ns = std::max(origin_ns, rank.result.trace(iteration).begin_ns);
    highest = std::max(highest, rank.rank);
  }
  ctl::TraceEvents trace;
  for (const RankResult& rank : ranks) {
    AddRank(profile, rank.rank, rank.result.trace(iteration), origin_ns, trace);
  }
  if (is_shown) AddBlocks(board, highest + 1, trace);
  return trace.Dump({{"iteration", iteration}});
}

}  // namespace headrace::replay
