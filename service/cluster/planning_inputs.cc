#include "service/cluster/planning_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ipc/base/check.h"
#include "service/plan/coded.h"
#include "transport/codec/codec.h"
#include "transport/exchange/limits.h"
#include "transport/exchange/partition.h"
#include "transport/probe/codec_probe.h"
#include "transport/probe/line_fit.h"
#include "transport/probe/probe.h"

namespace headrace::service {
namespace {

DType WidestOf(const Layout& layout) {
  const auto size = [](const LayoutTensor& tensor) { return SizeOf(tensor.dtype); };
  return std::ranges::max_element(layout.tensors, {}, size)->dtype;
}

constexpr std::size_t kLaneInNode = 0;
constexpr std::size_t kFirstLaneBetweenNodes = 1;

bool IsTime(double seconds) {
  return std::isfinite(seconds) && seconds >= 0 && seconds <= plan::kSecondsMax;
}

bool AreTimes(const std::vector<double>& seconds) {
  return std::all_of(seconds.begin(), seconds.end(), IsTime);
}

// A lane on which nothing has moved has no line of its own.
bool IsSeen(const transport::CostLine& line) {
  return line.startup_s > 0 || line.s_per_byte > transport::kSecondsPerByteMin;
}

// The lines that were seen of one lane.
std::vector<transport::CostLine> SeenOf(std::size_t lane, std::span<const NodeSeen> seen) {
  std::vector<transport::CostLine> lines;
  for (const NodeSeen& each : seen) {
    if (lane < each.costs.size() && IsSeen(each.costs[lane])) lines.push_back(each.costs[lane]);
  }
  return lines;
}

auto Quicker(double bytes) {
  return [bytes](const transport::CostLine& one, const transport::CostLine& other) {
    return one.Seconds(bytes) < other.Seconds(bytes);
  };
}

plan::PiecewiseCost CostInNode(std::span<const NodeSeen> seen, double block_bytes) {
  const std::vector<transport::CostLine> lines = SeenOf(kLaneInNode, seen);
  if (lines.empty()) return plan::Affine(0, 0);
  const auto slowest = std::max_element(lines.begin(), lines.end(), Quicker(block_bytes));
  return plan::MeasuredLine(slowest->startup_s, slowest->s_per_byte);
}

double BytesSentPerByte(const JobShape& shape) {
  return transport::BytesSent(static_cast<std::uint32_t>(shape.nodes.size()), shape.servers_count,
                              1.0);
}

std::vector<plan::PiecewiseCost> CostsBetweenNodes(const JobShape& shape,
                                                   std::span<const NodeSeen> seen,
                                                   double block_bytes) {
  const double bytes = block_bytes * BytesSentPerByte(shape);
  std::vector<plan::PiecewiseCost> costs;
  for (std::size_t rail = 0; rail < shape.agreed.size(); ++rail) {
    const auto lines = SeenOf(kFirstLaneBetweenNodes + rail, seen);
    const auto fastest = std::min_element(lines.begin(), lines.end(), Quicker(bytes));
    costs.push_back(BlockCost(fastest == lines.end() ? shape.agreed[rail] : *fastest, shape));
  }
  return costs;
}

}  // namespace

bool AreRecorded(const NodeTimes& times) {
  // A float's times, too.
  constexpr auto is_time = [](double seconds) { return IsTime(seconds); };
  const auto is_recorded = [&is_time](const SeenIteration& each) {
    return IsTime(each.offset_s) && IsTime(each.forward_begin_s) &&
           std::ranges::all_of(each.release_s, is_time) &&
           std::ranges::all_of(each.forward_s, is_time);
  };
  return IsTime(times.iteration_s) && IsTime(times.running_s) && AreTimes(times.release_s) &&
         AreTimes(times.forward_s) && times.contention >= 0 &&
         times.contention <= plan::kContentionMax &&
         std::ranges::all_of(times.iterations, is_recorded);
}

Status CheckSeen(const NodeSeen& seen, const Layout& layout, const JobShape& shape) {
  const std::size_t tensors = layout.tensors.size();
  if (seen.times.release_s.size() != tensors || seen.times.forward_s.size() != tensors) {
    return Error(Code::kCorrupt,
                 fmt::format("times of {} releases and {} forward passes, the "
                             "layout has {} tensors",
                             seen.times.release_s.size(), seen.times.forward_s.size(), tensors));
  }
  if (!AreRecorded(seen.times)) return Error(Code::kCorrupt, "an invalid recorded time");
  for (const SeenIteration& each : seen.times.iterations) {
    if (each.release_s.size() == tensors && each.forward_s.size() == tensors) continue;
    return Error(Code::kCorrupt,
                 fmt::format("a recorded iteration of {} releases and {} forward passes, the "
                             "layout has {} tensors",
                             each.release_s.size(), each.forward_s.size(), tensors));
  }
  if (seen.costs.size() > kFirstLaneBetweenNodes + shape.agreed.size()) {
    return Error(Code::kCorrupt, fmt::format("costs of {} lanes, there are {}", seen.costs.size(),
                                             kFirstLaneBetweenNodes + shape.agreed.size()));
  }
  const bool finite = std::all_of(seen.costs.begin(), seen.costs.end(), [](const auto& line) {
    return std::isfinite(line.startup_s) && line.startup_s >= 0 && std::isfinite(line.s_per_byte) &&
           line.s_per_byte >= 0;
  });
  if (!finite) return Error(Code::kCorrupt, "an invalid cost");
  if (seen.codecs.size() > kCodecCostsMax || !std::ranges::all_of(seen.codecs, IsCodecCost)) {
    return Error(Code::kCorrupt, "an invalid codec cost");
  }
  return {};
}

plan::Profile MergeTimes(const std::string& model, const Layout& layout,
                         std::span<const NodeSeen> seen) {
  const std::size_t count = layout.tensors.size();
  plan::Profile profile{.model = model, .dtype = WidestOf(layout), .tensors = {}};
  const std::uint64_t unit = SizeOf(profile.dtype);
  profile.tensors.resize(count);
  for (const NodeSeen& each : seen) {
    HR_CHECK(each.times.release_s.size() == count && each.times.forward_s.size() == count, model,
             each.times.release_s.size(), each.times.forward_s.size(), count);
  }
  std::vector<double> tails_s(seen.size(), 0);  // of each node's forward pass, from l + 1 on
  double released_s = 0;                        // of l + 1
  double tail_s = 0;
  for (std::size_t l = count; l-- > 0;) {
    double release_s = released_s;
    double longest_s = 0;
    for (std::size_t node = 0; node < seen.size(); ++node) {
      release_s = std::max(release_s, seen[node].times.release_s[l]);
      tails_s[node] += seen[node].times.forward_s[l];
      longest_s = std::max(longest_s, tails_s[node]);
    }
    profile.tensors[l] = {.name = layout.tensors[l].name,
                          .elements = (layout.tensors[l].Bytes() + unit - 1) / unit,
                          .backward_s = release_s - released_s,
                          .forward_s = longest_s - tail_s,
                          .rows = layout.tensors[l].rows};
    released_s = release_s;
    tail_s = longest_s;
  }
  return profile;
}

namespace {

const SeenIteration* FindIteration(const NodeSeen& seen, std::uint64_t number) {
  const auto found = std::ranges::find(seen.times.iterations, number, &SeenIteration::iteration);
  return found == seen.times.iterations.end() ? nullptr : &*found;
}

// The same iteration on all nodes; their begins lie `offset_s` behind one common moment.
plan::RecordedIteration MergeIteration(const std::vector<const SeenIteration*>& nodes) {
  double latest_s = 0;
  for (const SeenIteration* node : nodes) latest_s = std::max(latest_s, node->offset_s);
  const std::size_t count = nodes.front()->release_s.size();
  plan::RecordedIteration merged{.release_s = std::vector<float>(count, 0),
                                 .forward_s = std::vector<float>(count, 0),
                                 .forward_begin_s = 0};
  double whole_s = 0;
  for (const SeenIteration* node : nodes) {
    const double earlier_s = latest_s - node->offset_s;
    double tail_s = 0;
    for (std::size_t l = count; l-- > 0;) {
      tail_s += static_cast<double>(node->forward_s[l]);
      merged.forward_s[l] = std::max(merged.forward_s[l], static_cast<float>(tail_s));
      const double release_s = static_cast<double>(node->release_s[l]) - earlier_s;
      merged.release_s[l] = std::max(merged.release_s[l], static_cast<float>(release_s));
    }
    whole_s = std::max(whole_s, node->forward_begin_s + tail_s - earlier_s);
  }
  // What a gradient behind it was released after, it counts as released with.
  for (std::size_t l = count - 1; l-- > 0;) {
    merged.release_s[l] = std::max(merged.release_s[l], merged.release_s[l + 1]);
  }
  merged.forward_begin_s = std::max(0.0, whole_s - static_cast<double>(merged.forward_s[0]));
  for (std::size_t l = 0; l + 1 < count; ++l) {
    merged.forward_s[l] = std::max(0.0F, merged.forward_s[l] - merged.forward_s[l + 1]);
  }
  return merged;
}

double WholeSeconds(const plan::RecordedIteration& each) {
  double seconds = each.forward_begin_s;
  for (const float part_s : each.forward_s) seconds += static_cast<double>(part_s);
  return seconds;
}

// Drops iterations in which the loop did something else, so that they took twice as long as most.
void DropInterludes(std::vector<plan::RecordedIteration>& iterations) {
  if (iterations.empty()) return;
  std::vector<double> wholes_s;
  for (const plan::RecordedIteration& each : iterations) wholes_s.push_back(WholeSeconds(each));
  const auto middle = wholes_s.begin() + static_cast<std::ptrdiff_t>(wholes_s.size() / 2);
  std::ranges::nth_element(wholes_s, middle);
  std::erase_if(iterations, [most_s = 2 * *middle](const plan::RecordedIteration& each) {
    return WholeSeconds(each) > most_s;
  });
}

}  // namespace

plan::Recording MergeRecorded(std::span<const NodeSeen> seen) {
  plan::Recording recording;
  if (seen.empty()) return recording;
  for (const SeenIteration& first : seen.front().times.iterations) {
    std::vector<const SeenIteration*> nodes;
    for (const NodeSeen& node : seen) {
      if (const SeenIteration* found = FindIteration(node, first.iteration)) nodes.push_back(found);
    }
    if (nodes.size() == seen.size()) recording.iterations.push_back(MergeIteration(nodes));
  }
  DropInterludes(recording.iterations);
  for (const NodeSeen& node : seen) {
    recording.contention += node.times.contention / static_cast<double>(seen.size());
  }
  return recording;
}

IterationSeen IterationOf(std::span<const NodeSeen> seen) {
  IterationSeen slowest;
  for (const NodeSeen& each : seen) {
    slowest.iteration_s = std::max(slowest.iteration_s, each.times.iteration_s);
  }
  // The node whose ranks stand still for longest says what a plan could save.
  slowest.running_s = slowest.iteration_s;
  for (const NodeSeen& each : seen) {
    slowest.running_s = std::min(slowest.running_s, each.times.running_s);
  }
  return slowest;
}

plan::PiecewiseCost BlockCost(const transport::CostLine& line, const JobShape& shape) {
  // Bytes are never free: shares of rails are divided by their price.
  const double s_per_byte = std::max(line.s_per_byte, transport::kSecondsPerByteMin);
  return plan::MeasuredLine(line.startup_s, s_per_byte * BytesSentPerByte(shape));
}

plan::Route RouteOf(const JobShape& shape, std::span<const NodeSeen> seen, double block_bytes) {
  const plan::PiecewiseCost in_node = CostInNode(seen, block_bytes);
  if (!shape.crosses_nodes()) {
    plan::Route route = plan::AllReduceRoute(in_node);
    route.halves = shape.halves;
    return route;
  }
  const std::vector<plan::PiecewiseCost> rails = CostsBetweenNodes(shape, seen, block_bytes);
  HR_CHECK(!rails.empty(), shape.nodes.size());
  plan::Route route = rails.size() == 1 ? plan::AllReduceRoute(rails[0]) : plan::RailsRoute(rails);
  route.halves = shape.halves;
  const bool several =
      std::any_of(shape.nodes.begin(), shape.nodes.end(),
                  [](const JobShape::Node& node) { return node.ranks.size() > 1; });
  if (!several) return route;
  const auto lane = static_cast<std::uint32_t>(route.lanes.size());
  route.lanes.emplace_back("intra-node");
  route.stages.insert(
      route.stages.begin(),
      {.name = "reduce-scatter", .rails = {{lane, in_node}}, .kind = Collective::kReduceScatter});
  route.stages.push_back(
      {.name = "all-gather", .rails = {{lane, in_node}}, .kind = Collective::kAllGather});
  return route;
}

namespace {

// What a node has reported of the codec, or of its kind, whose parameter changes little.
const CodecCost* FindCost(const NodeSeen& seen, const Codec& codec) {
  const CodecCost* of_kind = nullptr;
  for (const CodecCost& cost : seen.codecs) {
    if (cost.codec == codec) return &cost;
    if (cost.codec.kind == codec.kind) of_kind = &cost;
  }
  return of_kind;
}

// A rank is work, and most of it where the rank is not small; other parameters change little.
double TimesTheWork(const Codec& codec, const Codec& measured) {
  if (codec.kind != Codec::kPowerSgd) return 1;
  return std::max(1.0,
                  static_cast<double>(codec.parameter) / static_cast<double>(measured.parameter));
}

// What a codec costs the node that comes last to a transfer: the one whose processor takes longest,
// or, where servers sum or costs are of transfers, for whom it takes least, since others also
// waited. Kind none where a node has reported nothing.
CodecCost CostOf(const JobShape& shape, std::span<const NodeSeen> seen, const Codec& codec) {
  const bool served = shape.servers_count > 0 && codec.kind != Codec::kPowerSgd;
  CodecCost of_all{.codec = codec, .share = 0};
  const bool waited = served || std::ranges::all_of(seen, [&codec](const NodeSeen& node) {
                        const CodecCost* const cost = FindCost(node, codec);
                        return cost != nullptr && cost->of_transfers;
                      });
  double quickest_s = std::numeric_limits<double>::infinity();
  for (const NodeSeen& node : seen) {
    const CodecCost* const cost = FindCost(node, codec);
    if (cost == nullptr) return {};
    of_all.share = std::max(of_all.share, cost->share);
    const double times = TimesTheWork(codec, cost->codec);
    const double encode_s = times * cost->encode_s_per_byte;
    const double decode_s = times * cost->decode_s_per_byte;
    if (!waited) {
      of_all.encode_s_per_byte = std::max(of_all.encode_s_per_byte, encode_s);
      of_all.decode_s_per_byte = std::max(of_all.decode_s_per_byte, decode_s);
    } else if (encode_s + decode_s < quickest_s) {
      quickest_s = encode_s + decode_s;
      of_all.encode_s_per_byte = encode_s;
      of_all.decode_s_per_byte = decode_s;
    }
  }
  if (HasBlocks(codec)) {
    of_all.share = transport::EncodedShare(codec) + (served ? transport::kServedTailShare : 0);
  }
  if (served) of_all.share = std::min(1.0, of_all.share + transport::kServedHeaderShare);
  return of_all;
}

// How a transfer between the job's nodes is cut in that codec.
plan::PieceSizes SizesOf(const JobShape& shape, const CodecCost& cost) {
  const bool served = shape.servers_count > 0;
  const auto most_plain = static_cast<double>(
      (served ? transport::kServedPieceCountMax : transport::kEncodedPieceCountMax) *
      sizeof(float));
  const std::uint32_t owners =
      transport::EncodedOwners(static_cast<std::uint32_t>(shape.nodes.size()));
  return {.least_bytes =
              served ? most_plain * cost.share : static_cast<double>(transport::kSentPieceSizeMin),
          .most_bytes = static_cast<double>(transport::ExchangeOptions().piece_size),
          .most_plain_bytes = most_plain,
          .pieces_count = served ? 1.0 : static_cast<double>(transport::kPiecesPerOwner * owners),
          .placed_bytes = served ? most_plain : 0};
}

plan::Stage& StageBetweenNodes(plan::Route& route, const JobShape& shape) {
  const auto stage = std::ranges::find_if(
      route.stages, [](const plan::Stage& each) { return !IsHalf(each.kind); });
  HR_CHECK(stage != route.stages.end() && shape.crosses_nodes(), shape.nodes.size());
  return *stage;
}

}  // namespace

void AddRuns(plan::Route& route, const JobShape& shape, const Layout& layout) {
  if (shape.servers_count == 0) return;
  std::vector<std::uint64_t>& offsets = StageBetweenNodes(route, shape).offsets_bytes;
  offsets.resize(layout.tensors.size());
  std::ranges::transform(layout.tensors, offsets.begin(), &LayoutTensor::offset);
}

void AddCodecs(plan::Route& route, const JobShape& shape, std::span<const NodeSeen> seen,
               std::span<const Codec> codecs) {
  plan::Stage& stage = StageBetweenNodes(route, shape);
  for (const Codec& codec : codecs) {
    const CodecCost cost = CostOf(shape, seen, codec);
    if (!IsCodecCost(cost) || stage.coded.size() == kCodecCostsMax) continue;
    plan::CodedLines coded{.cost = cost, .lines = {}};
    const plan::PieceSizes sizes = SizesOf(shape, cost);
    for (const plan::Rail& rail : stage.rails) {
      const plan::CostPiece& plain = rail.line.pieces.back();
      coded.lines.push_back(codec.kind == Codec::kPowerSgd ? plan::FactoredLine(plain, cost)
                                                           : plan::EncodedLine(plain, cost, sizes));
    }
    stage.coded.push_back(std::move(coded));
  }
}

}  // namespace headrace::service
