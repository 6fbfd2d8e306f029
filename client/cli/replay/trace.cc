#include "client/cli/replay/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "client/cli/ctl/table.h"

namespace headrace::replay {
namespace {

using Json = nlohmann::ordered_json;

// Rows stand in the order of these numbers.
constexpr int kComputing = 1;
constexpr int kWaiting = 2;

// Chrome's times are microseconds.
double Microseconds(TimeNs time_ns) { return static_cast<double>(time_ns) / kMicrosecond; }

Json Slice(const std::string& name, std::uint32_t process, int row, TimeNs begin_ns,
           TimeNs end_ns) {
  return {{"name", name},
          {"ph", "X"},
          {"pid", process},
          {"tid", row},
          {"ts", Microseconds(begin_ns)},
          {"dur", Microseconds(end_ns - begin_ns)}};
}

Json Named(const char* what, std::uint32_t process, int row, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", process}, {"tid", row}, {"args", {{"name", name}}}};
}

std::string NameOf(Span::Kind kind, const std::string& tensor) {
  switch (kind) {
    case Span::Kind::kBackward:
      return "backward " + tensor;
    case Span::Kind::kWait:
      return "wait " + tensor;
    case Span::Kind::kForward:
      return "forward " + tensor;
  }
  return tensor;
}

void AddRank(const Profile& profile, std::uint32_t rank, const Take& take, TimeNs origin_ns,
             Json& slices) {
  slices.push_back(Named("process_name", rank, 0, fmt::format("rank {}", rank)));
  slices.push_back(Named("thread_name", rank, kComputing, "computing"));
  slices.push_back(Named("thread_name", rank, kWaiting, "waiting"));
  for (const Span& span : take.spans) {
    const int row = span.kind == Span::Kind::kWait ? kWaiting : kComputing;
    const std::string name = NameOf(span.kind, ctl::Printable(profile.tensors[span.tensor].name));
    slices.push_back(Slice(name, rank, row, span.begin_ns - origin_ns, span.end_ns - origin_ns));
  }
}

Json BlockSlice(const ipc::PlanBlockRow& block, std::uint32_t process, int row) {
  Json slice =
      Slice(fmt::format("block {}", block.index + 1), process, row, block.begin_ns, block.end_ns);
  slice["args"] = {{"bytes", block.bytes},
                   {"tensor", ctl::Printable(ipc::GetText(block.tensor))},
                   {"first_tensor", block.first_tensor},
                   {"last_tensor", block.last_tensor},
                   {"ready_us", Microseconds(block.ready_ns)},
                   {"predicted_begin_us", Microseconds(block.predicted_begin_ns)},
                   {"predicted_end_us", Microseconds(block.predicted_end_ns)}};
  return slice;
}

// Blocks that move at the same time stand in rows of their own.
void AddBlocks(const Ending& ending, std::uint32_t process, Json& slices) {
  slices.push_back(Named("process_name", process, 0, "blocks of the plan"));
  std::vector<TimeNs> free_from_ns;  // of each row
  for (const ipc::PlanBlockRow& block : ending.blocks) {
    if (block.end_ns == 0) continue;  // it has not moved
    auto row = std::find_if(free_from_ns.begin(), free_from_ns.end(),
                            [&block](TimeNs time_ns) { return time_ns <= block.begin_ns; });
    if (row == free_from_ns.end()) row = free_from_ns.insert(row, 0);
    *row = block.end_ns;
    slices.push_back(BlockSlice(block, process, 1 + static_cast<int>(row - free_from_ns.begin())));
  }
  for (std::size_t i = 0; i < free_from_ns.size(); ++i) {
    slices.push_back(Named("thread_name", process, 1 + static_cast<int>(i), "moving"));
  }
}

}  // namespace

std::string TraceJson(const Profile& profile, const std::vector<Played>& played) {
  const Performance& first = played.front().performance;
  const Ending& ending = played.front().ending;
  const std::uint64_t last = first.warmup + first.iterations.size();
  const std::uint64_t shown = ending.plan ? ending.plan->iteration : 0;
  const bool is_shown = shown != 0 && first.take(shown).iteration == shown;
  const std::uint64_t iteration = is_shown ? shown : last;
  TimeNs origin_ns = 0;
  std::uint32_t highest = 0;
  for (const Played& rank : played) {
    origin_ns = std::max(origin_ns, rank.performance.take(iteration).begin_ns);
    highest = std::max(highest, rank.rank);
  }
  Json slices = Json::array();
  for (const Played& rank : played) {
    AddRank(profile, rank.rank, rank.performance.take(iteration), origin_ns, slices);
  }
  if (is_shown) AddBlocks(ending, highest + 1, slices);
  const Json trace = {{"displayTimeUnit", "ms"},
                      {"otherData", {{"iteration", iteration}}},
                      {"traceEvents", std::move(slices)}};
  return trace.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace headrace::replay
