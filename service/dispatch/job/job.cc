#include "service/dispatch/job/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "ipc/base/check.h"
#include "ipc/base/codec_cost.h"
#include "ipc/base/matrix.h"
#include "transport/codec/codec.h"

namespace headrace::service {

Job::Job(const SessionIdentity& identity, TimeNs now)
    : making{boost::circular_buffer<std::uint64_t>(kOperationsMax),
             boost::circular_buffer<std::uint64_t>(kPlannedOpenMax),
             boost::circular_buffer<std::uint64_t>(), boost::circular_buffer<std::uint64_t>(),
             boost::circular_buffer<std::uint64_t>(kOperationsMax)},
      // Sends and receives cross in no order that nodes share.
      crossing{boost::circular_buffer<std::uint32_t>(kBlocksMax),
               boost::circular_buffer<std::uint32_t>(kBlocksMax),
               boost::circular_buffer<std::uint32_t>(), boost::circular_buffer<std::uint32_t>(),
               boost::circular_buffer<std::uint32_t>(kBlocksMax)},
      id_(identity.job),
      name_(identity.job_name),
      owner_uid_(identity.uid),
      epoch_(identity.epoch),
      restarts_(identity.epoch - 1),
      opened_ns_(now),
      ranks_(identity.world_size),
      pairs_(identity.world_size),
      part_tables_(identity.world_size),
      memory_(kOperationsMax * identity.world_size),
      devices_(kOperationsMax * identity.world_size, transport::kHost),
      records_(kOperationsMax * identity.world_size),
      rendezvous_(identity.rendezvous),
      blocks_(kBlocksMax) {
  for (std::uint32_t place = kBlocksMax; place > 0; --place) free_blocks_.push_back(place - 1);
  if (spans_nodes()) return;  // its ranks may be anywhere
  formed_ = true;
  local_.resize(identity.world_size);
  std::iota(local_.begin(), local_.end(), 0U);
  local_ranks_ = ~RankMask{0} >> (64 - identity.world_size);
}

// Each time a rank comes back the epoch that it is given is one more than that before.
void Job::RaiseEpoch(std::uint32_t epoch) {
  epoch_ = std::max(epoch_, epoch);
  restarts_ = std::max(restarts_, epoch - 1);
}

std::optional<SessionId> Job::BookedOn() {
  for (const JobRank& entry : ranks_) {
    if (booked_on) break;
    if (entry.session != nullptr) booked_on = entry.session->identity().id;
  }
  return booked_on;
}

Status Job::CheckRemovable(std::uint32_t rank, SegmentId segment) {
  const Session& session = *ranks_[rank].session;
  const std::span<std::byte> memory = session.FindSegment(segment);
  if (memory.empty()) {
    return Error(Code::kNotFound, fmt::format("segment {} is not registered", segment.value));
  }
  if (session.HasTensorsIn(segment)) {
    return Error(
        Code::kInvalidArgument,
        fmt::format("segment {} holds registered tensors, or residuals of the layout: release "
                    "tensors first; what a layout is in lasts as long as the session",
                    segment.value));
  }
  Status status;
  ForEachOpen([&](const Operation& operation) {
    if (!status || !Uses(operation, rank, memory)) return;
    status = Error(Code::kBusy, fmt::format("segment {} is in use: {} is open; wait for it first",
                                            segment.value, DescribeOperation(operation)));
  });
  return status;
}

Status Job::Form(JobNodes nodes) {
  std::vector<std::uint32_t> local;
  if (nodes.self < nodes.nodes.size()) local = nodes.nodes[nodes.self].ranks;
  if (Status status = CheckNodes(nodes, world_size(), local); !status) return status;
  RankMask local_ranks = 0;
  for (const std::uint32_t rank : local) local_ranks |= RankMask{1} << rank;
  if (formed_ || local_ranks == 0 || (attached_ranks() & ~local_ranks) != 0) {
    return Error(Code::kCorrupt, fmt::format("ranks {} are said to be here, {} are attached{}",
                                             fmt::join(local, ", "), attached(),
                                             formed_ ? ", and it has begun" : ""));
  }
  formed_ = true;
  epoch_ = nodes.epoch;
  local_ = std::move(local);
  local_ranks_ = local_ranks;
  waits_for.clear();
  Changed();
  verify = nodes.verify;
  // A rendezvous at which only one node appeared.
  if (nodes.data_nodes_count() > 1) nodes_ = std::move(nodes);
  return {};
}

std::uint32_t Job::attached() const {
  return static_cast<std::uint32_t>(
      std::count_if(ranks_.begin(), ranks_.end(),
                    [](const JobRank& entry) { return entry.session && !entry.gone; }));
}

// The nodes of a job meet when each has all of its ranks.
bool Job::HasMet() const {
  return formed_ && std::ranges::all_of(local_, [this](std::uint32_t rank) {
           return ranks_[rank].session != nullptr || ranks_[rank].gone;
         });
}

RankMask Job::attached_ranks() const {
  RankMask ranks = 0;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].session) ranks |= RankMask{1} << rank;
  }
  return ranks;
}

bool Job::HasSessions() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const JobRank& entry) { return entry.session != nullptr; });
}

std::uint32_t Job::FirstMissing(const Posts& posts) const {
  const RankMask waited_for = WantedOf(posts);
  // Whoever could post but has not says more than whoever has not come yet.
  const RankMask here = waited_for & attached_ranks() & ~posts.ranks;
  const RankMask missing = here != 0 ? here : waited_for & ~posts.ranks;
  if (missing == 0) return local_.front();  // what all have posted may be held back all the same
  return static_cast<std::uint32_t>(std::countr_zero(missing));
}

std::optional<std::uint32_t> Job::FirstAwaited(const Posts& posts) const {
  const RankMask waited_for = WantedOf(posts);
  if (posts.awaited == 0 || (waited_for & ~posts.ranks) != 0) return std::nullopt;
  return static_cast<std::uint32_t>(std::countr_zero(posts.awaited));
}

std::string Job::DescribeMissing(const Posts& posts) const {
  if (const auto waiting = FirstAwaited(posts); waiting) {
    return fmt::format("the GPU of {} has not reached", DescribeRank(*waiting));
  }
  return fmt::format("{} has not posted", DescribeRank(FirstMissing(posts)));
}

Block* Job::AllocateBlock(const Operation& operation) {
  if (free_blocks_.empty()) return nullptr;
  Block& block = blocks_[free_blocks_.back()];
  HR_CHECK(block.sequence == 0 && block.parts_open == 0, block.sequence, block.parts_open);
  HR_CHECK(block.crossing == Crossing::kNone, static_cast<int>(block.crossing));
  free_blocks_.pop_back();
  block.sequence = operation.spec.sequence;
  block.comes = operation.comes;
  block.copies = operation.copies;
  block.parts_standing = 0;
  ++blocks_in_[static_cast<std::size_t>(block.traffic_class())];
  return &block;
}

void Job::FreeBlock(Block& block) {
  HR_CHECK(block.sequence != 0 && free_blocks_.size() < kBlocksMax, block.sequence);
  if (block.crossing != Crossing::kNone) {
    // Only a failed job gives up blocks that other nodes wait for.
    auto& places = crossing[static_cast<std::size_t>(block.traffic_class())];
    const auto found = std::find(places.begin(), places.end(), PlaceOf(block));
    HR_CHECK(found != places.end(), block.sequence);
    places.erase(found);
    block.crossing = Crossing::kNone;
  }
  std::size_t& blocks_in = blocks_in_[static_cast<std::size_t>(block.traffic_class())];
  HR_CHECK(blocks_in > 0, block.sequence);
  --blocks_in;
  block.sequence = 0;
  free_blocks_.push_back(PlaceOf(block));
}

bool Job::Uses(const Operation& operation, std::uint32_t rank, std::span<const std::byte> memory) {
  if (!operation.posts.Has(rank)) return false;
  const auto holds = [memory](const std::byte* data) {
    return data >= memory.data() && data < memory.data() + memory.size();
  };
  const std::uint64_t sequence = operation.spec.sequence;
  if (holds(this->memory(sequence, rank))) return true;
  return operation.spec.kind == Collective::kReduceScatter &&
         holds(part_tables_.ResultOf(sequence, rank));
}

std::int8_t Job::DeviceOf(const Operation& operation, std::uint32_t rank) {
  if (operation.planned()) return ranks_[rank].session->gradients()->device;
  return device(operation.spec.sequence, rank);
}

Codec Job::CodecOf(const Operation& operation) const {
  if (nodes() == nullptr) return Codec::kNone;
  const OperationSpec& spec = operation.spec;
  // What NCCL lanes carry crosses as it is.
  const bool through_host = !spec.OnGpu() || nodes()->nccl_lanes == 0;
  const bool possible = through_host && spec.dtype == DType::kFloat32 && !IsHalf(spec.half);
  if (!possible || spec.Bytes() < kEncodedBytesMin) return Codec::kNone;
  return operation.planned() ? operation.wire().codec : spec.codec;
}

bool Job::HasGradientsOnGpus() const {
  return std::ranges::any_of(ranks_, [](const JobRank& entry) {
    const Session* const session = entry.session.get();
    return session != nullptr && session->gradients() != nullptr &&
           session->gradients()->device != transport::kHost;
  });
}

double Job::SentShareOf(const Operation& operation) const {
  const Codec codec = CodecOf(operation);
  if (codec.kind != Codec::kPowerSgd) return transport::EncodedShare(codec);
  const WireBlock& block = operation.wire();
  return static_cast<double>(FactorsCount(codec, block.rows, block.count)) /
         static_cast<double>(block.count);
}

bool Job::Verifies(const Operation& operation) const {
  if (verify == 0 || operation.spec.count == 0) return false;
  if (!IsShared(operation.spec.kind) || operation.spec.OnGpu()) return false;
  if (operation.spec.half == Collective::kReduceScatter) return false;
  if (!nodes_ && local_.size() == 1) return false;
  const std::uint64_t number = operation.planned() ? operation.iteration : operation.spec.sequence;
  return number % verify == 0;
}

std::string Job::DescribeDifference(const Operation& operation, const Block& block,
                                    std::uint64_t differing) const {
  const auto other = static_cast<std::size_t>(std::countr_zero(differing));
  return fmt::format("verify: the result of {} in {} differs from that of {}",
                     DescribeRank(local_[other]), DescribeBlock(operation.NameOf(block)),
                     DescribeRank(local_.front()));
}

std::string Job::DescribeRank(std::uint32_t rank) const {
  const JobRank& entry = ranks_[rank];
  if (!entry.session && nodes_) {
    return fmt::format("rank {} on node {}", rank, nodes_->nodes[NodeOf(*nodes_, rank)].name);
  }
  if (!entry.session) return fmt::format("rank {}", rank);
  return fmt::format("rank {} (pid {})", rank, entry.session->identity().pid);
}

std::string Job::DescribeProgress(std::uint32_t rank) const {
  const std::uint64_t operations = ranks_[rank].operations;
  if (!gradients) return fmt::format("operation {}", operations);
  const std::uint64_t iterations = gradients->IterationsOf(rank);
  if (operations == 0) return fmt::format("iteration {}", iterations);
  return fmt::format("operation {} and iteration {}", operations, iterations);
}

std::string Job::DescribeGradient(std::uint32_t tensor) const {
  const std::string& name = gradients->layout().tensors[tensor].name;
  return fmt::format("gradient {}{}{}{} of iteration {}", tensor, name.empty() ? "" : " [", name,
                     name.empty() ? "" : "]", gradients->IterationOf(tensor));
}

std::string Job::DescribeNodes() const {
  std::string nodes;
  for (const JobNode& node : nodes_->nodes) {
    const char* const what = node.ranks.empty()       ? "server"
                             : node.ranks.size() == 1 ? "rank"
                                                      : "ranks";
    nodes += fmt::format("{}{} ({}{}{})", nodes.empty() ? "" : ", ", node.name, what,
                         node.ranks.empty() ? "" : " ", fmt::join(node.ranks, ", "));
  }
  return fmt::format("{} nodes have met: {}; epoch {}, blocks of {} bytes", nodes_->nodes.size(),
                     nodes, epoch_, nodes_->block_bytes);
}

std::string Job::DescribePeers(std::uint64_t nodes) const {
  const auto first = static_cast<std::size_t>(std::countr_zero(nodes));
  if (!nodes_ || first >= nodes_->nodes.size()) return {};
  const int others = std::popcount(nodes) - 1;
  const std::string& name = nodes_->nodes[first].name;
  return others == 0 ? name : fmt::format("{} +{}", name, others);
}

std::string_view Job::TensorName(const Operation& operation) const {
  if (operation.planned()) return gradients->layout().tensors[operation.wire().tensors[0]].name;
  const JobRank& entry = ranks_[operation.first_rank];
  if (!entry.session) return {};
  const Tensor* tensor = entry.session->FindTensor(operation.spec.tensor);
  return tensor != nullptr ? std::string_view(tensor->name) : std::string_view();
}

std::string Job::DescribeOperation(const Operation& operation) const {
  const std::string_view tensor = TensorName(operation);
  if (operation.planned()) {
    const auto& tensors = gradients->layout().tensors;
    const std::string half =
        IsHalf(operation.spec.half) ? fmt::format(" ({})", Name(operation.spec.half)) : "";
    return fmt::format("block {}{} [{} .. {}] of iteration {}", operation.index + 1, half, tensor,
                       tensors[operation.wire().tensors.back()].name, operation.iteration);
  }
  return fmt::format("{} {} [{}{}{}]", operation.paired() ? "pair" : "operation",
                     operation.number(), Describe(operation.spec), tensor.empty() ? "" : ", ",
                     tensor);
}

std::string Job::DescribeMismatch(const Operation& operation, std::uint32_t rank,
                                  const OperationSpec& spec) const {
  if (operation.paired()) {
    return fmt::format(
        "{} posted {} {}, {} posted {} {}: a send and its receive have the same count, element "
        "type and kind of memory",
        DescribeRank(operation.first_rank), Describe(operation.spec),
        DescribeMemory(operation.spec.device), DescribeRank(rank), Describe(spec),
        DescribeMemory(spec.device));
  }
  if (operation.spec.OnGpu() != spec.OnGpu()) {
    return fmt::format(
        "{} posted {} {}, {} posted {} {} as operation {}: the ranks of a node post GPUs' memory, "
        "all of them, or the host's",
        DescribeRank(operation.first_rank), Describe(operation.spec),
        DescribeMemory(operation.spec.device), DescribeRank(rank), Describe(spec),
        DescribeMemory(spec.device), spec.sequence);
  }
  return fmt::format(
      "{} posted {}, {} posted {} as operation {}: every rank must post the same operations in the "
      "same order",
      DescribeRank(operation.first_rank), Describe(operation.spec), DescribeRank(rank),
      Describe(spec), spec.sequence);
}

}  // namespace headrace::service
