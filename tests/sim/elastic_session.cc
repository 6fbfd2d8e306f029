#include "tests/sim/elastic_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "tests/support/hand_driven_cluster.h"

namespace headrace::sim {
namespace {

constexpr std::size_t kSegmentSize = 65536;
constexpr std::uint32_t kCollectives = 0;  // segments
constexpr std::uint32_t kGradients = 1;
constexpr std::size_t kLargeOffset = 64;

}  // namespace

ElasticSession::ElasticSession(support::HandDrivenNode& node, const support::JobSpec& job, Who who,
                               const service::Layout& layout)
    : node_(node),
      who_(std::move(who)),
      client_(node.Attach(job, who_.identity.rank, kSegmentSize)) {
  node_.AddSegment(client_, kSegmentSize);
  for (std::uint32_t i = 0; i < layout.tensors.size(); ++i) {
    const service::LayoutTensor& tensor = layout.tensors[i];
    offsets_.push_back(tensor.offset);
    node_.AddTensor(client_, TensorId{kFirstTensor.value + i},
                    {.name = tensor.name,
                     .segment = SegmentId{kGradients},
                     .offset = tensor.offset,
                     .count = tensor.count,
                     .dtype = tensor.dtype,
                     .order = i});
  }
}

std::string ElasticSession::Name() const {
  return fmt::format("process {} as rank {} of epoch {} on node {}", who_.process, rank(),
                     who_.identity.epoch, support::HandDrivenCluster::NameOf(who_.node));
}

std::uint64_t ElasticSession::Post(const Planned& planned, Place place,
                                   std::span<const std::byte> input) {
  ipc::Record record = RecordOf(planned);
  record.segment = kCollectives;
  record.offset = place == Place::kSmall ? 0 : kLargeOffset;
  const std::span<std::byte> memory =
      client_.Memory(kCollectives).subspan(record.offset, planned.Bytes());
  std::ranges::copy(input, memory.begin());
  const std::uint64_t number = ++collectives_;
  posted_.push_back(
      {.number = number, .planned = planned, .input = {memory.begin(), memory.end()}});
  open_.push_back({.number = number,
                   .record = client_.Post(record),
                   .segment = kCollectives,
                   .offset = record.offset,
                   .size = memory.size()});
  return number;
}

std::uint64_t ElasticSession::PostBarrier(bool follows_gradients) {
  const Planned planned;
  ipc::Record record = RecordOf(planned);
  if (follows_gradients) record.flags = ipc::kRecordFollowsGradients;
  const std::uint64_t number = ++collectives_;
  posted_.push_back({.number = number, .planned = planned});
  open_.push_back({.number = number, .record = client_.Post(record)});
  return number;
}

void ElasticSession::PostGradient(const Planned& planned, std::uint64_t iteration,
                                  std::uint64_t of_epoch, std::uint32_t tensor,
                                  std::span<const std::byte> input, std::uint32_t contributors) {
  const std::span<std::byte> memory =
      client_.Memory(kGradients).subspan(offsets_[tensor], planned.Bytes());
  std::ranges::copy(input, memory.begin());
  ipc::GradientRecord record;
  record.kind = static_cast<std::uint8_t>(Collective::kAllReduce);
  record.dtype = static_cast<std::uint8_t>(planned.dtype);
  record.reduction = static_cast<std::uint8_t>(planned.reduction);
  record.flags = ipc::kRecordIsGradient;
  record.tensor = kFirstTensor.value + tensor;
  record.count = planned.count;
  const bool averages = planned.reduction == Reduction::kAverage;
  record.contributors = averages ? contributors : 0;
  record.forward_ns = 1000;
  record.backward_ns = static_cast<std::uint64_t>(node_.now);
  record.posted_ns = static_cast<std::uint64_t>(node_.now);
  const std::uint64_t number = GradientNumber(of_epoch, tensor);
  Planned divided = planned;
  divided.contributors = record.contributors;
  posted_.push_back({.number = number, .planned = divided, .input = {input.begin(), input.end()}});
  open_.push_back({.number = number,
                   .record = client_.Post(std::bit_cast<ipc::Record>(record)),
                   .segment = kGradients,
                   .offset = offsets_[tensor],
                   .size = memory.size()});
  gradients_[iteration].push_back(open_.back().record);
}

std::optional<std::string> ElasticSession::ReadEnds(EpochChecker& checker, std::vector<End>& ends) {
  for (std::size_t i = 0; i < open_.size();) {
    if (!client_.HasEnded(open_[i].record)) {
      ++i;
      continue;
    }
    const Open open = open_[i];
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i));
    ended_.push_back({open.record, Word(open.record)});
    const std::span<const std::byte> view = node_.ServiceMemory(client_, open.segment);
    if (!view.empty() && open.size != 0 && node_.Uses(view.subspan(open.offset, open.size))) {
      return Name() + ": an operation has ended while a lane uses its memory";
    }
    const std::span<std::byte> memory =
        client_.Memory(open.segment).subspan(open.offset, open.size);
    const ipc::Outcome outcome = client_.Read(open.record);
    End end{.number = open.number,
            .ok = outcome.code == Code::kOk,
            .code = outcome.code,
            .text = outcome.text,
            .result = {memory.begin(), memory.end()}};
    if (auto wrong = checker.End(*this, open.number, outcome, end.result)) return wrong;
    ends.push_back(std::move(end));
  }
  return std::nullopt;
}

bool ElasticSession::HasAverages(std::uint64_t iteration, std::size_t tensors_count) const {
  const auto found = gradients_.find(iteration);
  if (found == gradients_.end() || found->second.size() != tensors_count) return false;
  return std::ranges::all_of(found->second, [this](std::uint64_t record) {
    // Its word may be that of a later record by now, whose gradient waited for this one.
    const auto word = ipc::CompletionWord::Unpack(Word(record));
    return word.sequence > record || (word.sequence == record && word.code == Code::kOk);
  });
}

bool ElasticSession::HasUnended() const {
  return std::ranges::any_of(open_,
                             [this](const Open& open) { return !client_.HasEnded(open.record); });
}

std::optional<std::string> ElasticSession::CheckAtEnd() const {
  for (const Ended& ended : ended_) {
    // Later ones may have come into the slots of earlier ones.
    if (ended.record + ipc::kOperationsMax <= client_.posted()) continue;
    if (Word(ended.record) != ended.word) return Name() + ": an operation ended twice";
  }
  return std::nullopt;
}

std::uint64_t ElasticSession::Word(std::uint64_t record) const {
  return client_.layout().words[record % ipc::kOperationsMax].load();
}

ElasticSession& EpochChecker::Add(support::HandDrivenNode& node, const support::JobSpec& job,
                                  ElasticSession::Who who, const service::Layout& layout) {
  const service::SessionIdentity own = who.identity;
  const bool disturbed = std::ranges::any_of(sessions_, [&own](const ElasticSession& each) {
    const service::SessionIdentity& other = each.who().identity;
    return each.disturbed && other.after_epoch == own.after_epoch && other.epoch == own.epoch;
  });
  ElasticSession& added = sessions_.emplace_back(node, job, std::move(who), layout);
  added.disturbed = disturbed;
  return added;
}

std::optional<JobId> EpochChecker::Register(const ElasticSession& session) {
  if (session.key == 0) return std::nullopt;
  if (const auto known = jobs_.find(session.key); known != jobs_.end()) return known->second;
  const JobId job{static_cast<std::uint32_t>(jobs_.size() + 1)};
  std::map<std::uint32_t, const ElasticSession*> by_rank;
  for (const ElasticSession& each : sessions_) {
    if (each.key == session.key) by_rank[each.rank()] = &each;
  }
  if (by_rank.size() != session.world_size()) return std::nullopt;  // not all nodes know it
  jobs_.emplace(session.key, job);
  if (!session.who().algorithm) {
    checker_.AddJob(job, session.world_size());
    return job;
  }
  NodeSums sums{.ranks = {}, .algorithm = *session.who().algorithm};
  std::map<std::size_t, std::size_t> places;  // of nodes, by their lowest rank
  for (const auto& [rank, each] : by_rank) {
    const auto place = places.try_emplace(each->who().node, places.size()).first->second;
    sums.ranks.resize(places.size());
    sums.ranks[place].push_back(rank);
  }
  checker_.AddJobOfNodes(job, session.world_size(), std::move(sums));
  return job;
}

void EpochChecker::Flush(JobId job, std::uint64_t key) {
  for (ElasticSession& each : sessions_) {
    if (each.key != key) continue;
    for (ElasticSession::Posted& posted : std::exchange(each.posted_, {})) {
      checker_.Post(job, posted.number, each.rank(), posted.planned, true, std::move(posted.input));
    }
    if (each.disturbed) checker_.Blame(job, "");
  }
}

std::optional<std::string> EpochChecker::End(ElasticSession& session, std::uint64_t number,
                                             const ipc::Outcome& outcome,
                                             const std::vector<std::byte>& result) {
  const bool ok = outcome.code == Code::kOk;
  if (!ok && !session.disturbed && session.met_ns != kNever) {
    return fmt::format("{}: nothing has befallen its job, but: {}", session.Name(), outcome.text);
  }
  const std::optional<JobId> job = Register(session);
  if (!job && ok) {
    return session.Name() + ": an operation ended well before all nodes of its job had begun";
  }
  if (!job) return std::nullopt;
  Flush(*job, session.key);
  if (!ok) checker_.Blame(*job, "");
  return checker_.End(*job, number, session.rank(), outcome, result);
}

}  // namespace headrace::sim
