#include "service/dispatch/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "ipc/base/check.h"
#include "service/dispatch/cut.h"

namespace headrace::service {
namespace {

// Blocks of one job that may be summed outside any rank's memory at one time.
constexpr std::size_t kScratchBlocks = 8;

}  // namespace

Job::Job(const SessionIdentity& identity, TimeNs now)
    : making{boost::circular_buffer<std::uint64_t>(kOperationsMax),
             boost::circular_buffer<std::uint64_t>(kPlannedOpenMax)},
      crossing{boost::circular_buffer<std::uint32_t>(kBlocksMax),
               boost::circular_buffer<std::uint32_t>(kBlocksMax)},
      id_(identity.job),
      name_(identity.job_name),
      owner_uid_(identity.uid),
      epoch_(identity.epoch),
      restarts_(identity.epoch - 1),
      opened_ns_(now),
      members_(identity.world_size),
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
  dirty = true;
  verify = nodes.verify;
  // A rendezvous at which only one node appeared.
  if (nodes.data_nodes_count() > 1) nodes_ = std::move(nodes);
  return {};
}

std::uint32_t Job::attached() const {
  return static_cast<std::uint32_t>(
      std::count_if(members_.begin(), members_.end(),
                    [](const Member& member) { return member.session && !member.gone; }));
}

// The nodes of a job meet when each has all of its ranks.
bool Job::HasMet() const {
  return formed_ && std::ranges::all_of(local_, [this](std::uint32_t rank) {
           return members_[rank].session != nullptr || members_[rank].gone;
         });
}

RankMask Job::attached_ranks() const {
  RankMask ranks = 0;
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    if (members_[rank].session) ranks |= RankMask{1} << rank;
  }
  return ranks;
}

bool Job::HasSessions() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const Member& member) { return member.session != nullptr; });
}

std::uint32_t Job::FirstMissing(RankMask posted) const {
  const RankMask waited_for = formed_ ? local_ranks_ : ~RankMask{0} >> (64 - members_.size());
  // Whoever could post but has not says more than whoever has not come yet.
  const RankMask here = waited_for & attached_ranks() & ~posted;
  const RankMask missing = here != 0 ? here : waited_for & ~posted;
  if (missing == 0) return local_.front();  // what all have posted may be held back all the same
  return static_cast<std::uint32_t>(std::countr_zero(missing));
}

std::optional<std::uint32_t> Job::FirstAwaited(RankMask posted, RankMask ready) const {
  const RankMask waited_for = formed_ ? local_ranks_ : ~RankMask{0} >> (64 - members_.size());
  const RankMask waiting = posted & ~ready;
  if (waiting == 0 || (waited_for & ~posted) != 0) return std::nullopt;
  return static_cast<std::uint32_t>(std::countr_zero(waiting));
}

std::string Job::DescribeMissing(RankMask posted, RankMask ready) const {
  if (const auto waiting = FirstAwaited(posted, ready); waiting) {
    return fmt::format("the GPU of {} has not come as far as", DescribeRank(*waiting));
  }
  return fmt::format("{} has not posted", DescribeRank(FirstMissing(posted)));
}

Block* Job::TakeBlock() {
  if (free_blocks_.empty()) return nullptr;
  Block& block = blocks_[free_blocks_.back()];
  free_blocks_.pop_back();
  return &block;
}

void Job::FreeBlock(Block& block) {
  if (block.crossing != Crossing::kNone) {
    // Only a failed job gives up blocks that other nodes wait for.
    auto& places = crossing[static_cast<std::size_t>(block.order())];
    const auto found = std::find(places.begin(), places.end(), PlaceOf(block));
    HR_CHECK(found != places.end(), block.sequence);
    places.erase(found);
    block.crossing = Crossing::kNone;
  }
  GiveGpuScratch(block);
  if (block.scratch != nullptr) free_scratch_.push_back(std::exchange(block.scratch, nullptr));
  block.sequence = 0;
  free_blocks_.push_back(PlaceOf(block));
}

bool Job::NeedsScratch(const Operation& operation, const Block& block) const {
  if (nodes_ && operation.shape.OnGpu()) return true;
  return nodes_ && operation.shape.kind == Collective::kReduceScatter && local_.size() > 1 &&
         !IsHere(block.root);
}

bool Job::TakeScratch(const Operation& operation, Block& block) {
  if (operation.shape.OnGpu()) return TakeGpuScratch(operation, block);
  if (!scratch_) {
    Result<Mapping> mapping = Mapping::Anonymous(kScratchBlocks * nodes_->block_bytes);
    if (!mapping) return false;
    scratch_ = std::move(mapping).value();
    for (std::size_t i = kScratchBlocks; i > 0; --i) {
      free_scratch_.push_back(scratch_.data() + (i - 1) * nodes_->block_bytes);
    }
  }
  if (free_scratch_.empty()) return false;
  block.scratch = free_scratch_.back();
  free_scratch_.pop_back();
  return true;
}

// Where element `begin` of the operation lies; of a plan's block, whose elements are in runs, where
// the rank's gradients begin.
std::byte* Job::MemoryOf(const Operation& operation, std::uint32_t rank, std::uint64_t begin) {
  if (operation.planned()) return members_[rank].session->gradients()->base;
  std::byte* const start = memory(operation.shape.sequence, rank);
  return start == nullptr ? nullptr : start + begin * SizeOf(operation.shape.dtype);
}

std::int8_t Job::DeviceOf(const Operation& operation, std::uint32_t rank) {
  if (operation.planned()) return members_[rank].session->gradients()->device;
  return device(operation.shape.sequence, rank);
}

// Where this node's sum, or its copy of what travels, lies from element `begin` on.
std::byte* Job::SumOf(const Operation& operation, const Block& block, std::uint64_t begin) {
  if (block.scratch != nullptr) {
    return block.scratch + (begin - block.range.begin) * SizeOf(operation.shape.dtype);
  }
  const bool rooted = operation.shape.kind != Collective::kAllReduce && IsHere(block.root);
  return MemoryOf(operation, rooted ? block.root : local_.front(), begin);
}

transport::Transfer Job::MakeTransfer(const Operation& operation, const Block& block,
                                      const Part& part) {
  transport::Transfer transfer{.token = part.stage.token,
                               .kind = operation.shape.kind,
                               .dtype = operation.shape.dtype,
                               .reduction = operation.shape.reduction,
                               .root = operation.shape.root,
                               .count = part.range.count,
                               .position = block.position()};
  if (operation.planned()) {
    transfer.runs = operation.wire().runs;
    transfer.skip = part.range.begin;
  }
  const bool by_scratch = nodes_ && operation.shape.OnGpu();
  switch (block.step) {
    case Step::kInNode:
      if (by_scratch) {
        FillFromGpus(operation, block, part, transfer);
      } else {
        FillInNode(operation, block, part, transfer);
      }
      break;
    case Step::kBetweenNodes:
      FillBetweenNodes(operation, block, part, transfer);
      break;
    case Step::kToRanks:
      if (by_scratch) {
        FillToGpus(operation, block, part, transfer);
      } else {
        FillToRanks(operation, block, part, transfer);
      }
      break;
    case Step::kVerify:
      FillVerify(operation, part, transfer);
      break;
    case Step::kDone:
      HR_CHECK(false, block.sequence);
  }
  return transfer;
}

bool Job::Verifies(const Operation& operation) const {
  if (verify == 0 || operation.shape.count == 0) return false;
  if (!IsShared(operation.shape.kind) || operation.shape.OnGpu()) return false;
  if (!nodes_ && local_.size() == 1) return false;
  const std::uint64_t number = operation.planned() ? operation.iteration : operation.shape.sequence;
  return number % verify == 0;
}

std::string Job::DescribeDifference(const Operation& operation, const Block& block,
                                    std::uint64_t differing) const {
  const auto other = static_cast<std::size_t>(std::countr_zero(differing));
  return fmt::format("verify: what {} has got in {} is not what {} has got",
                     DescribeRank(local_[other]), DescribeBlock(operation.NameOf(block)),
                     DescribeRank(local_.front()));
}

void Job::FillInNode(const Operation& operation, const Block& block, const Part& part,
                     transport::Transfer& transfer) {
  transfer.members_count = static_cast<std::uint32_t>(local_.size());
  for (std::uint32_t i = 0; i < local_.size(); ++i) {
    transfer.members[i] = MemoryOf(operation, local_[i], part.range.begin);
    transfer.devices[i] = DeviceOf(operation, local_[i]);
  }
  if (!nodes_) {
    if (operation.block_bytes == 0 || !IsParted(operation.shape.kind)) return;
    // A block of one rank's part: only that rank gets the sum, or it is the one who has it.
    const bool reduces = operation.shape.kind == Collective::kReduceScatter;
    transfer.kind = reduces ? Collective::kReduce : Collective::kBroadcast;
    transfer.root = block.root;
    if (reduces) transfer.output = transfer.members[block.root];
    return;
  }
  transfer.kind = Collective::kReduce;
  transfer.root = 0;
  transfer.output = SumOf(operation, block, part.range.begin);
  // The division comes last, once the sum of all ranks is there.
  if (transfer.reduction == Reduction::kAverage) transfer.reduction = Reduction::kSum;
}

void Job::FillBetweenNodes(const Operation& operation, const Block& block, const Part& part,
                           transport::Transfer& transfer) {
  transfer.group = id_.value;
  transfer.members_count = static_cast<std::uint32_t>(nodes_->data_nodes_count());
  transfer.divisor = world_size();
  // A rank may say any root where the collective has none; here it would have to be a node.
  transfer.root = 0;
  if (transfer.kind == Collective::kBarrier) return;
  if (operation.shape.OnGpu()) {
    // Between the steps of GPUs a block lies in one piece.
    transfer.runs = {};
    transfer.skip = 0;
  }
  if (block.from_gpus) {
    // Lanes of GPUs come first, so the part's place is the number of the GPU.
    transfer.members[nodes_->self] = block.scratch_on_gpus[block.PartOf(part)];
    transfer.devices[nodes_->self] = static_cast<std::int8_t>(block.PartOf(part));
  } else {
    transfer.members[nodes_->self] = SumOf(operation, block, part.range.begin);
  }
  if (transfer.kind == Collective::kAllReduce) return;
  transfer.root = NodeOf(*nodes_, block.root);
  transfer.root_rank = block.root;
  if (transfer.kind == Collective::kReduceScatter) {
    transfer.kind = Collective::kReduce;
    if (transfer.root == nodes_->self) transfer.output = transfer.members[nodes_->self];
  } else {
    transfer.kind = Collective::kBroadcast;
  }
}

void Job::FillToRanks(const Operation& operation, const Block& block, const Part& part,
                      transport::Transfer& transfer) {
  const bool rooted = operation.shape.kind != Collective::kAllReduce && IsHere(block.root);
  transfer.kind = Collective::kBroadcast;
  transfer.members_count = static_cast<std::uint32_t>(local_.size());
  transfer.root = 0;
  for (std::uint32_t i = 0; i < local_.size(); ++i) {
    transfer.members[i] = MemoryOf(operation, local_[i], part.range.begin);
    if (rooted && local_[i] == block.root) transfer.root = i;
  }
}

void Job::FillVerify(const Operation& operation, const Part& part, transport::Transfer& transfer) {
  transfer.kind = Collective::kBroadcast;
  transfer.digest = true;
  transfer.root = 0;
  transfer.members_count = static_cast<std::uint32_t>(local_.size());
  for (std::uint32_t i = 0; i < local_.size(); ++i) {
    transfer.members[i] = MemoryOf(operation, local_[i], part.range.begin);
  }
}

std::string Job::DescribeRank(std::uint32_t rank) const {
  const Member& member = members_[rank];
  if (!member.session && nodes_) {
    return fmt::format("rank {} on node {}", rank, nodes_->nodes[NodeOf(*nodes_, rank)].name);
  }
  if (!member.session) return fmt::format("rank {}", rank);
  return fmt::format("rank {} (pid {})", rank, member.session->identity().pid);
}

std::string Job::DescribeProgress(std::uint32_t rank) const {
  const std::uint64_t operations = members_[rank].operations;
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
  const Member& member = members_[operation.first_rank];
  if (!member.session) return {};
  const Tensor* tensor = member.session->FindTensor(operation.shape.tensor);
  return tensor != nullptr ? std::string_view(tensor->name) : std::string_view();
}

std::string Job::DescribeOperation(const Operation& operation) const {
  const std::string_view tensor = TensorName(operation);
  if (operation.planned()) {
    const auto& tensors = gradients->layout().tensors;
    return fmt::format("block {} [{} .. {}] of iteration {}", operation.index + 1, tensor,
                       tensors[operation.wire().tensors.back()].name, operation.iteration);
  }
  return fmt::format("operation {} [{}{}{}]", operation.shape.sequence, Describe(operation.shape),
                     tensor.empty() ? "" : ", ", tensor);
}

std::string Job::DescribeMismatch(const Operation& operation, std::uint32_t rank,
                                  const Posted& posted) const {
  if (operation.shape.OnGpu() != posted.OnGpu()) {
    return fmt::format(
        "{} posted {} {}, {} posted {} {} as operation {}: the ranks of a node post GPUs' memory, "
        "all of them, or the host's",
        DescribeRank(operation.first_rank), Describe(operation.shape),
        DescribeMemory(operation.shape.device), DescribeRank(rank), Describe(posted),
        DescribeMemory(posted.device), posted.sequence);
  }
  return fmt::format(
      "{} posted {}, {} posted {} as operation {}: every rank must post the same operations in the "
      "same order",
      DescribeRank(operation.first_rank), Describe(operation.shape), DescribeRank(rank),
      Describe(posted), posted.sequence);
}

}  // namespace headrace::service
