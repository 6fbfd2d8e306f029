#include "service/dispatch/lanes/lanes.h"

#include <algorithm>
#include <array>
#include <utility>

#include "ipc/base/check.h"
#include "ipc/base/halves.h"
#include "service/dispatch/job/encoded_sample.h"
#include "transport/codec/codec.h"
#include "transport/probe/codec_probe.h"
#include "transport/probe/probe.h"

namespace headrace::service {
namespace {

std::uint32_t DataNodesOf(const Job& job) {
  return static_cast<std::uint32_t>(job.nodes()->data_nodes_count());
}

}  // namespace

Lanes::Lanes(std::vector<LanePort> ports, BoardWriter& board)
    : first_rail_(ports.size()), board_(board) {
  for (LanePort& port : ports) {
    const auto index = static_cast<std::uint8_t>(lanes_.size());
    const bool rail = port.place == LanePlace::kBetweenNodes;
    HR_CHECK(rail || first_rail_ == ports.size(), port.name);
    if (rail) first_rail_ = std::min<std::size_t>(first_rail_, index);
    if (port.place == LanePlace::kInNode) in_node_ = index;
    if (port.place == LanePlace::kInNodeOnGpus) on_gpus_ = index;
    LaneState lane{
        .out = Outgoing<LaneMessage>(*port.inbox), .port = std::move(port), .recent_users = {}};
    lane.row.in_use = 1;
    lane.row.threads = lane.port.threads;
    lane.row.credit_bytes = lane.port.credit_bytes;
    SetBusy(lane, 0);
    ipc::SetText(lane.row.name, lane.port.name);
    ipc::SetText(lane.row.transport, lane.port.transport);
    lanes_.push_back(std::move(lane));
    Show(index);
  }
}

std::uint32_t Lanes::DeviceCodecs() const {
  std::uint32_t common = first_rail_ < lanes_.size() ? ~std::uint32_t{0} : 0;
  for (std::size_t rail = first_rail_; rail < lanes_.size(); ++rail) {
    common &= lanes_[rail].port.device_codecs;
  }
  return common;
}

std::vector<schedule::LaneTerms> Lanes::Terms() const {
  std::vector<schedule::LaneTerms> terms;
  for (const LaneState& lane : lanes_) {
    // Only stages inside the node wait for nobody.
    terms.emplace_back(lane.port.credit_bytes, lane.port.place != LanePlace::kBetweenNodes);
  }
  return terms;
}

// With a stage on it, a lane between nodes may just wait for another node.
void Lanes::SetBusy(LaneState& lane, TimeNs busy_ns) {
  const LanePort& port = lane.port;
  lane.busy_ns = busy_ns;
  const bool is_known = port.measures_flow || port.place != LanePlace::kBetweenNodes;
  lane.row.busy_ns = is_known ? busy_ns : ipc::kTimeUnknown;
}

// No GPU memory is registered where no lane takes it.
std::uint8_t Lanes::OnGpus() const {
  HR_CHECK(on_gpus_.has_value());
  return *on_gpus_;
}

std::uint64_t Lanes::BytesBetweenNodes(const Job& job, const schedule::QueuedStage& stage) {
  if (stage.traffic_class == schedule::TrafficClass::kReceived) return 0;
  if (stage.traffic_class == schedule::TrafficClass::kPaired) return stage.bytes;
  return static_cast<std::uint64_t>(transport::BytesSent(
      DataNodesOf(job), job.nodes()->servers_count, static_cast<double>(stage.bytes)));
}

void Lanes::OnStarted(const Job& job, const schedule::QueuedStage& stage, TimeNs now) {
  HR_CHECK(stage.lane < lanes_.size(), stage.lane);
  LaneState& lane = lanes_[stage.lane];
  if (lane.row.in_flight_stages++ == 0) lane.busy_since = now;
  lane.row.in_flight_bytes += stage.bytes;
  if (!IsBetweenNodes(stage.lane))
    lane.recent_users.Moves(job.id(), job.in_force.share.priority, now);
}

void Lanes::OnEnded(Job& job, const Operation& operation, const Block& block, const BlockPart& part,
                    const transport::Completion& completion, TimeNs now) {
  LaneState& lane = lanes_[part.queued.lane];
  HR_CHECK(lane.row.in_flight_stages > 0 && lane.row.in_flight_bytes >= part.queued.bytes,
           part.queued.token, lane.row.in_flight_bytes);
  lane.row.in_flight_bytes -= part.queued.bytes;
  // At every end and not only at the last one: a lane that is never empty is not to look idle.
  if (!lane.port.measures_flow) SetBusy(lane, lane.busy_ns + now - lane.busy_since);
  lane.busy_since = now;
  --lane.row.in_flight_stages;
  ++lane.row.stages_ended;
  // What is only looked at says nothing of what moving costs.
  if (completion.code == Code::kOk && block.stage != BlockStage::kVerify) {
    lane.row.bytes_moved += part.queued.bytes;
    lane.row.last_bytes = part.queued.bytes;
    lane.row.last_ns = completion.end_ns - completion.begin_ns;
    auto bytes = static_cast<double>(part.queued.bytes);
    const bool between_nodes = IsBetweenNodes(part.queued.lane);
    if (between_nodes) {
      bytes = transport::BytesSent(DataNodesOf(job), job.nodes()->servers_count, bytes);
    }
    // A half takes half of the time of all, and lines are of that.
    const bool half = IsHalf(operation.spec.half) && (between_nodes || job.nodes() == nullptr);
    const double whole = half ? 2.0 : 1.0;
    // Between nodes only an all-reduce sends the same from every node. The lane's line is of what
    // it carries; the job's, of what its blocks hold, encoded or not.
    if (!between_nodes || operation.spec.kind == Collective::kAllReduce) {
      const double share = between_nodes ? job.SentShareOf(operation) : 1.0;
      Learn(lane, bytes * share, whole, completion, now);
    }
    if (operation.planned() && !job.measured.samples.empty()) {
      const double seconds = job.measured.samples[SampleOf(part.queued.lane)].SecondsOf(
          part.begin_ns, completion, now);
      AddSample(job, operation, part, completion.codec, bytes, whole * seconds);
    }
  }
  lane.queue_changed = true;  // shown with what the turn does to it
}

// A job's line is of the wire alone: an encoded transfer counts with the bytes that crossed,
// without the time in which its first and last piece were on the processor. Where the processor, of
// this node or of a server, was the slower of the two, it only says that the wire is no slower.
void Lanes::AddSample(Job& job, const Operation& operation, const BlockPart& part,
                      const transport::CodecUse& use, double bytes, double seconds) const {
  LaneSamples& samples = job.measured.samples[SampleOf(part.queued.lane)];
  const std::uint32_t plan = operation.plan->plan->version;
  const Codec codec = IsBetweenNodes(part.queued.lane) ? job.CodecOf(operation) : Codec();
  if (codec == Codec::kNone || use.plain_bytes == 0) return samples.Add(plan, bytes, seconds);
  const auto block_bytes = static_cast<double>(part.queued.bytes);
  const JobNodes& nodes = *job.nodes();
  std::optional<double> before_s;
  if (!samples.is_of_prior()) {
    std::array<transport::CostLine, ipc::kLaneRowsMax> believed;
    for (std::size_t place = 1; place < job.measured.samples.size(); ++place) {
      believed[place] = job.measured.samples[place].Believed(nodes.costs[place - 1]);
    }
    before_s = job.measured.codec_samples.ProcessorSecondsOf(codec, block_bytes, believed,
                                                             operation.iteration);
  }
  const EncodedSample sample =
      EncodedSampleOf({.codec = codec,
                       .seconds = seconds,
                       .bytes = block_bytes,
                       .sent_per_byte = bytes / block_bytes,
                       .use = use,
                       .nodes_count = DataNodesOf(job),
                       .servers_count = nodes.servers_count,
                       .before_s = before_s},
                      samples.Believed(nodes.costs[part.queued.lane - first_rail_]));
  job.measured.codec_samples.Add(codec, block_bytes, sample, SampleOf(part.queued.lane),
                                 operation.iteration);
  if (sample.is_of_wire) return samples.Add(plan, sample.wire_bytes, sample.wire_s);
  samples.AddBound(sample.wire_bytes, sample.wire_s);
}

void Lanes::SetCodecCosts(std::vector<CodecCost> measured, std::span<const CodecCost> of_gpus) {
  gpu_codec_costs_ = measured;
  for (CodecCost& cost : gpu_codec_costs_) {
    const auto found = std::ranges::find(of_gpus, cost.codec, &CodecCost::codec);
    if (found != of_gpus.end()) cost = *found;
  }
  codec_costs_ = std::move(measured);
}

std::vector<CodecCost> Lanes::CodecCostsOf(const Job& job,
                                           std::span<const transport::CostLine> lines) const {
  if (job.nodes() == nullptr) return {};
  const std::uint64_t iteration = job.gradients ? job.gradients->head_iteration() : 0;
  return job.measured.codec_samples.Costs(job.EncodesOnGpus() ? gpu_codec_costs_ : codec_costs_,
                                          DataNodesOf(job), job.nodes()->servers_count, lines,
                                          iteration);
}

void Lanes::Learn(LaneState& lane, double bytes, double times,
                  const transport::Completion& completion, TimeNs now) {
  // Several stages may be on the lane at once: each has cost what it ended after the one before.
  const TimeNs begin = std::max(completion.begin_ns, lane.last_end_ns);
  lane.last_end_ns = std::max(lane.last_end_ns, completion.end_ns);
  lane.cost.Add(bytes, times * static_cast<double>(completion.end_ns - begin) / kSecond, now);
  const transport::CostLine& line = lane.cost.line();
  lane.row.startup_ns = static_cast<TimeNs>(line.startup_s * kSecond);
  lane.row.bytes_per_s = line.s_per_byte > 0 ? static_cast<std::uint64_t>(1 / line.s_per_byte) : 0;
  lane.row.rate_bytes_per_s = static_cast<std::uint64_t>(lane.cost.RateNow(now));
  lane.row.rate_ns = now;
}

void Lanes::SetCosts(const std::vector<transport::CostLine>& costs) {
  for (std::size_t rail = 0; rail < costs.size(); ++rail) {
    const std::size_t index = first_rail_ + rail;
    HR_CHECK(index < lanes_.size(), index);
    LaneState& lane = lanes_[index];
    // What was seen at work is better than what another job measured.
    if (lane.cost.count() > 0) continue;
    lane.cost = transport::CostKeeper(costs[rail]);
    lane.row.startup_ns = static_cast<TimeNs>(costs[rail].startup_s * kSecond);
    lane.row.bytes_per_s = static_cast<std::uint64_t>(1 / costs[rail].s_per_byte);
    Show(static_cast<std::uint8_t>(index));
  }
}

void Lanes::OnFacts(const LaneFacts& facts) {
  HR_CHECK(facts.lane < lanes_.size(), facts.lane);
  LaneState& lane = lanes_[facts.lane];
  lane.row.messages_dropped = facts.messages_dropped;
  ipc::SetText(lane.row.transport, facts.wires);
  Show(facts.lane);
}

void Lanes::OnMoved(Job& job, std::uint8_t lane) {
  HR_CHECK(lane < lanes_.size() && IsBetweenNodes(lane), lane);
  lanes_[lane].cost = transport::CostKeeper(lanes_[lane].cost.line());
  ForgetRails(job);
}

void Lanes::ForgetRails(Job& job) {
  job.measured.codec_samples.OnWiresChanged(CostsOf(job));
  for (std::size_t place = 1; place < job.measured.samples.size(); ++place)
    job.measured.samples[place].Clear();
}

void Lanes::OnFlow(std::uint8_t lane, TimeNs flowed_ns) {
  HR_CHECK(lane < lanes_.size(), lane);
  if (!lanes_[lane].port.measures_flow) return;
  SetBusy(lanes_[lane], flowed_ns);
  lanes_[lane].queue_changed = true;
}

// Blocks that are through with the other nodes say nothing about those that are not.
std::uint8_t Lanes::WaitedFor(const Job& job, const Operation& operation) const {
  for (const Block& block : job.blocks()) {
    if (block.sequence != operation.spec.sequence) continue;
    for (std::uint32_t index = 0; index < block.parts_count; ++index) {
      const BlockPart& part = block.parts[index];
      if (part.state == BlockPart::State::kMoving && IsBetweenNodes(part.queued.lane)) {
        return part.queued.lane;
      }
    }
  }
  return operation.lane;
}

// What a lane carries of an order ends in that order, so the first block of the operation says all.
void Lanes::Ask(const Job& job, const Operation& operation) {
  std::array<const BlockPart*, ipc::kLaneRowsMax> firsts{};
  for (const Block& block : job.blocks()) {
    if (block.sequence != operation.spec.sequence || block.stage != BlockStage::kBetweenNodes)
      continue;
    for (std::uint32_t index = 0; index < block.parts_count; ++index) {
      const BlockPart& part = block.parts[index];
      if (part.state != BlockPart::State::kMoving) continue;
      const BlockPart*& first = firsts[part.queued.lane];
      if (first == nullptr || part.queued.position < first->queued.position) first = &part;
    }
  }
  for (const BlockPart* const part : firsts) {
    if (part == nullptr) continue;
    // A lane that is too far behind will be asked again.
    lanes_[part->queued.lane].out.TrySend(AskStage{part->queued.token});
  }
}

// Only the last share counts, so what a lane has no room for does not pile up: it is sent again as
// it is then.
void Lanes::SendShare(Job& job) {
  const transport::Share share{.weight = job.in_force.share.weight,
                               .priority = job.in_force.share.priority,
                               .by_urgency = job.in_force.share.by_urgency};
  job.in_force.share_unsent = false;
  for (std::size_t lane = first_rail_; lane < lanes_.size(); ++lane) {
    job.in_force.share_unsent |=
        !lanes_[lane].out.TrySend(service::SetShare{job.id().value, share});
  }
  shares_unsent_ |= job.in_force.share_unsent;
}

void Lanes::Notify(SendNotices notices) {
  HR_CHECK(first_rail_ < lanes_.size(), notices.job.value);
  lanes_[first_rail_].out.Send(std::move(notices));
}

void Lanes::SendNoticesOf(Job& job) {
  SendNotices told;
  for (Pairs::Notice& each : job.pairs().notices) {
    if (told.notices.size() == kSendNoticesMax ||
        (told.node != each.node && !told.notices.empty())) {
      Notify(std::exchange(told, {}));
    }
    told.job = job.id();
    told.node = each.node;
    told.notices.push_back(std::move(each.notice));
  }
  job.pairs().notices.clear();
  if (!told.notices.empty()) Notify(std::move(told));
}

std::uint64_t Lanes::Probe(RequestToken token) {
  std::uint64_t full = 0;
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    if (!lanes_[lane].out.TrySend(ProbeLane{token})) full |= std::uint64_t{1} << lane;
  }
  return full;
}

bool Lanes::Flush(Jobs& jobs, TimeNs now) {
  bool sent = false;
  for (LaneState& lane : lanes_) sent |= lane.out.Flush(now);
  flushed_ns_ = now;
  if (!std::exchange(shares_unsent_, false)) return sent;
  for (const std::unique_ptr<Job>& job : jobs) {
    if (!job->in_force.share_unsent) continue;
    SendShare(*job);
    sent |= !job->in_force.share_unsent;
  }
  return sent;
}

TimeNs Lanes::NextFlush() const {
  TimeNs next = shares_unsent_ ? flushed_ns_ + Outgoing<LaneMessage>::kRetryAfter : kNever;
  for (const LaneState& lane : lanes_) next = std::min(next, lane.out.NextDeadline());
  return next;
}

std::vector<transport::CostLine> Lanes::CostsOf(const Job& job) {
  std::vector<transport::CostLine> costs;
  for (std::size_t place = 0; place < job.measured.samples.size(); ++place) {
    const bool agreed = place > 0 && job.nodes() != nullptr;
    costs.push_back(job.measured.samples[place].Fit(agreed ? job.nodes()->costs[place - 1]
                                                           : transport::CostLine{}));
  }
  return costs;
}

void Lanes::Show(std::uint8_t lane) { board_.WriteLane(lane, lanes_[lane].row); }

}  // namespace headrace::service
