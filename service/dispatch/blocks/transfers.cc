#include "service/dispatch/blocks/transfers.h"

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"
#include "ipc/base/halves.h"
#include "ipc/base/matrix.h"
#include "service/dispatch/blocks/cut.h"
#include "transport/codec/seed.h"
#include "transport/runs.h"

namespace headrace::service {
namespace {

// Blocks of one job that may be summed outside any rank's memory at one time.
constexpr std::size_t kScratchBlocks = 8;

// Where element `begin` of the operation lies; of a plan's block, whose elements are in runs, where
// the rank's gradients begin.
std::byte* MemoryOf(Job& job, const Operation& operation, std::uint32_t rank, std::uint64_t begin) {
  if (operation.planned()) return job.ranks()[rank].session->gradients()->base;
  std::byte* const start = job.memory(operation.spec.sequence, rank);
  return start == nullptr ? nullptr : start + begin * SizeOf(operation.spec.dtype);
}

// Where rank `rank` wants its part reduced, from element `begin` on.
std::byte* ResultOf(Job& job, const Operation& operation, std::uint32_t rank, std::uint64_t begin) {
  const std::uint64_t sequence = operation.spec.sequence;
  std::byte* const result = operation.spec.kind == Collective::kReduceScatter
                                ? job.part_tables().ResultOf(sequence, rank)
                                : nullptr;
  if (result == nullptr) return MemoryOf(job, operation, rank, begin);
  const std::uint64_t part_begin = job.part_tables().Find(sequence, rank)[rank].sent_offset;
  HR_CHECK(begin >= part_begin, sequence, rank, begin);
  return result + (begin - part_begin) * SizeOf(operation.spec.dtype);
}

// Where this node's sum, or its copy of what travels, lies from element `begin` on.
std::byte* SumOf(Job& job, const Operation& operation, const Block& block, std::uint64_t begin) {
  if (block.scratch != nullptr) {
    return block.scratch + (begin - block.range.begin) * SizeOf(operation.spec.dtype);
  }
  const bool rooted = operation.spec.kind != Collective::kAllReduce && job.IsHere(block.root);
  if (!rooted) return MemoryOf(job, operation, job.local().front(), begin);
  // What a rank has alone is not summed on this node.
  const bool is_sum = Reduces(operation.spec.kind) && job.local().size() > 1;
  return is_sum ? ResultOf(job, operation, block.root, begin)
                : MemoryOf(job, operation, block.root, begin);
}

void AddMemory(std::byte* memory, std::int8_t device, transport::Transfer& transfer) {
  transfer.members[transfer.members_count] = memory;
  transfer.devices[transfer.members_count] = device;
  ++transfer.members_count;
}

void AddMember(Job& job, const Operation& operation, std::uint32_t rank, std::uint64_t begin,
               transport::Transfer& transfer) {
  AddMemory(MemoryOf(job, operation, rank, begin), job.DeviceOf(operation, rank), transfer);
}

// In the stages of the node a part has scratch of its own, or there is one part.
void AddScratch(const Block& block, const BlockPart& part, transport::Transfer& transfer) {
  AddMemory(block.scratch_on_gpus[block.PartOf(part)], transport::kHost, transfer);
}

// One copy, from the sender's memory to the receiver's.
void FillPair(Job& job, const Operation& operation, const BlockPart& part,
              transport::Transfer& transfer) {
  transfer.kind = Collective::kBroadcast;
  transfer.root = 0;
  AddMember(job, operation, operation.spec.source, part.range.begin, transfer);
  AddMember(job, operation, operation.spec.target, part.range.begin, transfer);
}

// The block's part between this node and that of the pair's other side.
void FillPairBetweenNodes(Job& job, const Operation& operation, const Block& block,
                          const BlockPart& part, transport::Transfer& transfer) {
  const Pair& pair = job.pairs().at(operation.spec.sequence);
  const bool comes = pair.away == Away::kComes;
  const std::uint32_t own = comes ? operation.spec.target : operation.spec.source;
  const std::uint64_t ahead = (part.range.begin - block.range.begin) * SizeOf(operation.spec.dtype);
  transfer.kind = comes ? kReceive : kSend;
  transfer.group = job.id().value;
  transfer.root = pair.node;
  transfer.members_count = static_cast<std::uint32_t>(job.nodes()->data_nodes_count());
  transfer.position = pair.send_name() << 16 | block.index;
  transfer.members[job.nodes()->self] = block.scratch != nullptr
                                            ? block.scratch + ahead
                                            : MemoryOf(job, operation, own, part.range.begin);
}

// Between the memory of a GPU here and the scratch memory that crosses.
void FillPairScratch(Job& job, const Operation& operation, const Block& block,
                     const BlockPart& part, transport::Transfer& transfer) {
  transfer.kind = Collective::kBroadcast;
  transfer.root = 0;
  if (operation.comes) {
    AddScratch(block, part, transfer);
    return AddMember(job, operation, operation.spec.target, part.range.begin, transfer);
  }
  AddMember(job, operation, operation.spec.source, part.range.begin, transfer);
  AddScratch(block, part, transfer);
}

void FillPairStage(Job& job, const Operation& operation, const Block& block, const BlockPart& part,
                   transport::Transfer& transfer) {
  if (block.stage == BlockStage::kBetweenNodes) {
    FillPairBetweenNodes(job, operation, block, part, transfer);
  } else if (job.pairs().at(operation.spec.sequence).away == Away::kNo) {
    FillPair(job, operation, part, transfer);
  } else {
    FillPairScratch(job, operation, block, part, transfer);
  }
}

// Where rank `rank`'s end of a message begins, from the part's first element on.
std::byte* MemoryOfMessage(Job& job, const Operation& operation, const Block& block,
                           const BlockPart& part, std::uint32_t rank) {
  const auto rows = job.part_tables().Find(operation.spec.sequence, rank);
  const std::uint64_t offset =
      rank == block.source ? rows[block.target].sent_offset : rows[block.source].received_offset;
  return MemoryOf(job, operation, rank, offset + part.range.begin);
}

// One copy where both ranks are of this node; else the message to the other one's node, or from it.
void FillMessage(Job& job, const Operation& operation, const Block& block, const BlockPart& part,
                 transport::Transfer& transfer) {
  transfer.root = 0;
  if (block.stage == BlockStage::kInNode) {
    transfer.kind = Collective::kBroadcast;
    transfer.members_count = 2;
    for (std::uint32_t i = 0; i < 2; ++i) {
      const std::uint32_t rank = i == 0 ? block.source : block.target;
      transfer.members[i] = MemoryOfMessage(job, operation, block, part, rank);
      transfer.devices[i] = job.DeviceOf(operation, rank);
    }
    return;
  }
  const bool comes = !job.IsHere(block.source);
  transfer.kind = comes ? kReceive : kSend;
  transfer.meets = true;
  transfer.group = job.id().value;
  transfer.root = NodeOf(*job.nodes(), comes ? block.source : block.target);
  transfer.members_count = static_cast<std::uint32_t>(job.nodes()->data_nodes_count());
  transfer.members[job.nodes()->self] =
      MemoryOfMessage(job, operation, block, part, comes ? block.target : block.source);
}

// The parts of an all-gather or reduce-scatter of one node: all of them, or a block of one rank's.
void FillParts(Job& job, const Operation& operation, const Block& block, const BlockPart& part,
               transport::Transfer& transfer) {
  if (!IsParted(operation.spec.kind)) return;
  const bool reduces = operation.spec.kind == Collective::kReduceScatter;
  if (operation.block_bytes == 0 && !operation.spec.uneven) {
    for (std::uint32_t i = 0; reduces && i < job.local().size(); ++i) {
      transfer.outputs[i] = job.part_tables().ResultOf(operation.spec.sequence, job.local()[i]);
    }
    return;
  }
  // Only the block's rank gets the sum, or it is the one who has it.
  transfer.kind = reduces ? Collective::kReduce : Collective::kBroadcast;
  transfer.root = block.root;
  if (!reduces) return;
  transfer.output = ResultOf(job, operation, block.root, part.range.begin);
  transfer.output_on_root_gpu =
      operation.spec.OnGpu() && transfer.output != transfer.members[block.root];
}

void FillInNode(Job& job, const Operation& operation, const Block& block, const BlockPart& part,
                transport::Transfer& transfer) {
  transfer.members_count = static_cast<std::uint32_t>(job.local().size());
  for (std::uint32_t i = 0; i < job.local().size(); ++i) {
    transfer.members[i] = MemoryOf(job, operation, job.local()[i], part.range.begin);
    transfer.devices[i] = job.DeviceOf(operation, job.local()[i]);
  }
  if (job.nodes() == nullptr) {
    transfer.divisor = operation.spec.contributors;
    if (operation.spec.kind == Collective::kReduce) {
      transfer.output = transfer.members[operation.spec.root];
    }
    if (operation.spec.half == Collective::kReduceScatter) {
      transfer.kind = Collective::kReduce;
      transfer.root = 0;
      transfer.output = transfer.members[0];
      return;
    }
    return FillParts(job, operation, block, part, transfer);
  }
  transfer.kind = Collective::kReduce;
  transfer.root = 0;
  transfer.output = SumOf(job, operation, block, part.range.begin);
  // The division comes last, once the sum of all ranks is there.
  if (transfer.reduction == Reduction::kAverage) transfer.reduction = Reduction::kSum;
}

// The same in an iteration that is made again, after the job has lost a service.
std::uint64_t SeedOf(const Job& job, const Operation& operation, const Block& block,
                     const BlockPart& part) {
  const BlockName name = operation.NameOf(block);
  const std::uint64_t before = name.planned ? job.gradients->iterations_before() : 0;
  const std::uint64_t whose = transport::MixedSeed(name.planned ? 1 : 0, before + name.number);
  return transport::MixedSeed(transport::MixedSeed(whose, name.block), part.range.begin);
}

// Residuals are of gradients, and lie as these do. Where nothing is left out of them any more,
// their sums get back what was.
std::byte* ResidualOf(Job& job, const Operation& operation, const transport::Transfer& transfer) {
  if (!operation.planned() || job.residuals.memory == nullptr) return nullptr;
  const std::vector<std::uint32_t>& gradients = operation.wire().tensors;
  if (Loses(transfer.codec)) {
    job.residuals.left_out.OnEncoded(gradients, operation.iteration);
    return job.residuals.memory;
  }
  const OperationSpec& spec = operation.spec;
  const bool sums = spec.reduction == Reduction::kSum || spec.reduction == Reduction::kAverage;
  const bool may_have =
      sums && spec.dtype == DType::kFloat32 && transfer.kind != Collective::kAllGather;
  if (!may_have || !job.residuals.left_out.OnExact(gradients, operation.iteration)) return nullptr;
  return job.residuals.memory;
}

// A part that NCCL carries from GPUs has none: such a layout has no codec.
void AddResidual(Job& job, const Operation& operation, const Block& block, const BlockPart& part,
                 transport::Transfer& transfer) {
  if (block.from_gpus) return;
  transfer.residual = ResidualOf(job, operation, transfer);
  if (transfer.residual == nullptr || !operation.spec.OnGpu()) return;
  if (block.coded_on() != transport::kHost) transfer.residual_on_gpus = job.residuals.OnGpus();
  transfer.residual_runs = operation.wire().runs;
  transfer.residual_skip = part.range.begin;
}

// Where the part's first element lies among a plan's gradients, for servers.
std::uint64_t PlaceOf(const Job& job, const Operation& operation, const BlockPart& part) {
  const bool has_place = operation.planned() && job.nodes()->servers_count > 0 &&
                         operation.spec.dtype == DType::kFloat32 && part.range.count > 0;
  if (!has_place) return 0;
  const transport::RunWalk walk(DType::kFloat32, part.range.count, operation.wire().runs,
                                part.range.begin);
  return walk.stretch().offset / sizeof(float) + 1;
}

// A GPU has the matrix at `values`. Its factors have memory that goes back with the block, so what
// helps the next sum is kept where it is for the host.
void UseFactorsOf(const Block& block, std::byte* values, transport::Transfer& transfer) {
  HR_CHECK(transfer.factors != nullptr && transfer.count == block.range.count, transfer.count);
  if (transfer.right_factor == nullptr) {
    const std::uint64_t left_count = transfer.rows * transfer.codec.parameter;
    transfer.right_factor = transfer.factors + left_count * sizeof(float);
  }
  transfer.factors = block.factors;
  transfer.factors_on_gpus = block.factors_on_gpus;
  transfer.factors_of_gpu = values + transfer.count * sizeof(float);
}

void FillBetweenNodes(Job& job, const Operation& operation, const Block& block,
                      const BlockPart& part, transport::Transfer& transfer) {
  transfer.group = job.id().value;
  transfer.members_count = static_cast<std::uint32_t>(job.nodes()->data_nodes_count());
  const std::uint32_t contributors = operation.spec.contributors;
  transfer.divisor = contributors != 0 ? contributors : job.world_size();
  // A rank may say any root where the collective has none; here it would have to be a node.
  transfer.root = 0;
  if (transfer.kind == Collective::kBarrier) return;
  transfer.block_count = block.range.count;
  transfer.operation_count = operation.spec.count;
  if (operation.spec.OnGpu()) {
    // Between the stages of GPUs a block lies in one piece.
    transfer.runs = {};
    transfer.skip = 0;
  }
  if (block.from_gpus) {
    // NCCL lanes come first, so the part's place is the number of the GPU.
    transfer.members[job.nodes()->self] = block.scratch_on_gpus[block.PartOf(part)];
    transfer.devices[job.nodes()->self] = static_cast<std::int8_t>(block.PartOf(part));
  } else if (block.coded_on() != transport::kHost) {
    const std::uint64_t ahead = part.range.begin - block.range.begin;
    transfer.members[job.nodes()->self] =
        block.scratch_on_gpus[0] + ahead * SizeOf(operation.spec.dtype);
    transfer.devices[job.nodes()->self] = block.coded_on();
  } else {
    transfer.members[job.nodes()->self] = SumOf(job, operation, block, part.range.begin);
  }
  if (IsHalf(operation.spec.half)) {
    transfer.kind = operation.spec.half;
    return AddResidual(job, operation, block, part, transfer);
  }
  if (transfer.kind == Collective::kAllReduce) {
    transfer.codec = job.CodecOf(operation);
    if (!operation.planned()) transfer.asked_codec = operation.spec.codec;
    if (transfer.codec.kind == Codec::kPowerSgd) {
      const WireBlock& matrix = operation.wire();
      transfer.rows = matrix.rows;
      transfer.factors = job.factors.Find(matrix.tensors.front(), transfer.codec);
      transfer.right_factor = job.residuals.RightFactorOf(matrix.tensors.front(), transfer.codec);
      if (block.factors != nullptr)
        UseFactorsOf(block, transfer.members[job.nodes()->self], transfer);
    }
    transfer.seed = SeedOf(job, operation, block, part);
    transfer.place = PlaceOf(job, operation, part);
    return AddResidual(job, operation, block, part, transfer);
  }
  transfer.root = NodeOf(*job.nodes(), block.root);
  transfer.root_rank = block.root;
  if (Reduces(transfer.kind)) {
    transfer.kind = Collective::kReduce;
    if (transfer.root == job.nodes()->self) {
      transfer.output = operation.spec.kind == Collective::kReduceScatter && !operation.spec.OnGpu()
                            ? ResultOf(job, operation, block.root, part.range.begin)
                            : transfer.members[job.nodes()->self];
    }
  } else {
    transfer.kind = Collective::kBroadcast;
  }
}

void FillToRanks(Job& job, const Operation& operation, const Block& block, const BlockPart& part,
                 transport::Transfer& transfer) {
  const bool rooted = operation.spec.kind != Collective::kAllReduce && job.IsHere(block.root);
  transfer.kind = Collective::kBroadcast;
  transfer.members_count = static_cast<std::uint32_t>(job.local().size());
  transfer.root = 0;
  for (std::uint32_t i = 0; i < job.local().size(); ++i) {
    transfer.members[i] = MemoryOf(job, operation, job.local()[i], part.range.begin);
    transfer.devices[i] = job.DeviceOf(operation, job.local()[i]);
    if (rooted && job.local()[i] == block.root) transfer.root = i;
  }
}

void FillVerify(Job& job, const Operation& operation, const BlockPart& part,
                transport::Transfer& transfer) {
  transfer.kind = Collective::kBroadcast;
  transfer.digest = true;
  transfer.root = 0;
  transfer.members_count = static_cast<std::uint32_t>(job.local().size());
  for (std::uint32_t i = 0; i < job.local().size(); ++i) {
    transfer.members[i] = MemoryOf(job, operation, job.local()[i], part.range.begin);
  }
}

// The node's sum, or the data of the rank that has it, into scratch. What a reduce-scatter has left
// is with the first rank.
void FillFromGpus(Job& job, const Operation& operation, const Block& block, const BlockPart& part,
                  transport::Transfer& transfer) {
  transfer.root = 0;
  const bool gathers = operation.spec.half == Collective::kAllGather;
  if (gathers || !Reduces(operation.spec.kind)) {
    transfer.kind = Collective::kBroadcast;
    const std::uint32_t holder = gathers ? job.local().front() : block.root;
    AddMember(job, operation, holder, part.range.begin, transfer);
    return AddScratch(block, part, transfer);
  }
  transfer.kind = Collective::kReduce;
  // The division comes last, once the sum of all ranks is there.
  if (transfer.reduction == Reduction::kAverage) transfer.reduction = Reduction::kSum;
  for (const std::uint32_t rank : job.local())
    AddMember(job, operation, rank, part.range.begin, transfer);
  transfer.output = block.scratch_on_gpus[block.PartOf(part)];
}

// What other nodes have made of it, from scratch or from the rank that had it all along.
void FillToGpus(Job& job, const Operation& operation, const Block& block, const BlockPart& part,
                transport::Transfer& transfer) {
  transfer.kind = Collective::kBroadcast;
  transfer.root = 0;
  const bool rooted = operation.spec.kind != Collective::kAllReduce && job.IsHere(block.root);
  const bool has_it = rooted && !Reduces(operation.spec.kind);
  if (!has_it) AddScratch(block, part, transfer);
  if (operation.spec.half == Collective::kReduceScatter) {
    return AddMember(job, operation, job.local().front(), part.range.begin, transfer);
  }
  if (rooted) {
    AddMemory(ResultOf(job, operation, block.root, part.range.begin),
              job.DeviceOf(operation, block.root), transfer);
  }
  if (!IsShared(operation.spec.kind)) return;
  for (const std::uint32_t rank : job.local()) {
    if (rooted && rank == block.root) continue;
    AddMember(job, operation, rank, part.range.begin, transfer);
  }
}

// Which of the job's scratch the block's has come from: that of the host, or of a GPU.
std::size_t ScratchPlace(std::int8_t gpu) { return static_cast<std::size_t>(gpu + 1); }
static_assert(transport::kHost == -1);

void ReturnGpuScratch(Job& job, Block& block) {
  if (block.factors != nullptr) {
    job.ScratchOf(block)[Job::kFactorsPlace].Free(block.factors_on_gpus);
    block.factors = block.factors_on_gpus = nullptr;
  }
  for (std::size_t part = 0; part < kRailsMax; ++part) {
    std::byte* const place = std::exchange(block.scratch_on_gpus[part], nullptr);
    if (place == nullptr) continue;
    job.ScratchOf(block)[block.from_gpus ? 1 + part : ScratchPlace(block.scratch_gpu)].Free(place);
    block.scratch = nullptr;
  }
  block.from_gpus = false;
  block.scratch_gpu = transport::kHost;
}

// The GPU that is to encode the block for other nodes: those of the ranks take turns. kHost: none.
std::int8_t GpuToCode(Job& job, const Operation& operation, const Block& block) {
  const Codec codec = job.CodecOf(operation);
  if (operation.paired() || (job.device_codecs >> codec.kind & 1U) == 0) return transport::kHost;
  const bool keeps = operation.planned() && job.residuals.memory != nullptr;
  if (keeps && job.residuals.OnGpus() == nullptr) return transport::kHost;
  const std::vector<std::uint32_t>& local = job.local();
  const std::uint32_t rank = local[(block.sequence + block.index) % local.size()];
  const std::int8_t gpu = job.DeviceOf(operation, rank);
  return gpu < static_cast<std::int8_t>(kRailsMax) ? gpu : transport::kHost;
}

// The elements that the GPU which encodes a matrix needs behind it for its factors, and as many of
// the host's memory that it reaches, through which these cross; 0: none.
std::uint64_t FactorsOnGpuCount(const Job& job, const Operation& operation, const Block& block) {
  const Codec codec = job.CodecOf(operation);
  if (codec.kind != Codec::kPowerSgd || block.scratch_gpu == transport::kHost) return 0;
  return FactorMemoryCount(codec, operation.wire().rows, block.range.count);
}

bool AllocateGpuScratch(Job& job, const Operation& operation, Block& block) {
  Job::GpuScratch& scratch = job.ScratchOf(block);
  const std::size_t element_size = SizeOf(operation.spec.dtype);
  block.from_gpus = !operation.paired() && CrossesFromGpus(operation.spec, *job.nodes());
  if (!block.from_gpus) {
    block.scratch_gpu = GpuToCode(job, operation, block);
    // Where the GPU had no memory to give, what was made is the host's, which encodes then.
    const std::uint64_t factors_count = FactorsOnGpuCount(job, operation, block);
    const Scratch::Place place = scratch[ScratchPlace(block.scratch_gpu)].Allocate(
        (block.range.count + factors_count) * element_size, job.nodes()->block_bytes);
    block.scratch = place.on_host;
    block.scratch_on_gpus[0] = place.on_gpus;
    bool complete = place.on_gpus != nullptr;
    if (factors_count > 0 && place.on_host == nullptr) {
      // Factors are few: they need no place of a block's size.
      const Scratch::Place pinned =
          scratch[Job::kFactorsPlace].Allocate(factors_count * element_size, 0);
      block.factors = pinned.on_host;
      block.factors_on_gpus = pinned.on_gpus;
      complete = complete && pinned.on_gpus != nullptr;
    }
    if (!complete) ReturnGpuScratch(job, block);
    return complete;
  }
  std::array<Range, kRailsMax> shares;
  const std::uint32_t lanes_count = SharesOf(job, operation, block, shares);
  bool complete = true;
  for (std::uint32_t lane = 0; lane < lanes_count; ++lane) {
    if (shares[lane].count == 0) continue;
    const Scratch::Place place = scratch[1 + lane].Allocate(shares[lane].count * element_size,
                                                            job.nodes()->block_bytes / lanes_count);
    block.scratch_on_gpus[lane] = place.on_gpus;
    complete = complete && place.on_gpus != nullptr;
  }
  if (!complete) ReturnGpuScratch(job, block);
  return complete;
}

}  // namespace

transport::Transfer MakeTransfer(Job& job, const Operation& operation, const Block& block,
                                 const BlockPart& part) {
  transport::Transfer transfer{.token = part.queued.token,
                               .kind = operation.spec.kind,
                               .dtype = operation.spec.dtype,
                               .reduction = operation.spec.reduction,
                               .root = operation.spec.root,
                               .count = part.range.count,
                               .position = block.position()};
  if (operation.planned()) {
    transfer.runs = operation.wire().runs;
    transfer.skip = part.range.begin;
  }
  if (operation.paired()) {
    FillPairStage(job, operation, block, part, transfer);
    return transfer;
  }
  if (MovesInMessages(operation.spec.kind)) {
    FillMessage(job, operation, block, part, transfer);
    return transfer;
  }
  const bool by_scratch = job.nodes() != nullptr && operation.spec.OnGpu();
  switch (block.stage) {
    case BlockStage::kInNode:
      if (by_scratch) {
        FillFromGpus(job, operation, block, part, transfer);
      } else {
        FillInNode(job, operation, block, part, transfer);
      }
      break;
    case BlockStage::kBetweenNodes:
      FillBetweenNodes(job, operation, block, part, transfer);
      break;
    case BlockStage::kToRanks:
      if (by_scratch) {
        FillToGpus(job, operation, block, part, transfer);
      } else {
        FillToRanks(job, operation, block, part, transfer);
      }
      break;
    case BlockStage::kVerify:
      FillVerify(job, operation, part, transfer);
      break;
    case BlockStage::kDone:
      HR_CHECK(false, block.sequence);
  }
  return transfer;
}

std::uint32_t SharesOf(const Job& job, const Operation& operation, const Block& block,
                       std::array<Range, kRailsMax>& shares) {
  const std::size_t element_size = SizeOf(operation.spec.dtype);
  if (job.CodecOf(operation).kind == Codec::kPowerSgd) {
    // A matrix is not taken apart.
    const std::size_t rail =
        RailOfMatrix(operation.wire().matrix, std::max<std::size_t>(1, job.nodes()->costs.size()));
    for (std::size_t other = 0; other < rail; ++other) shares[other] = {block.range.begin, 0};
    shares[rail] = block.range;
    return static_cast<std::uint32_t>(rail + 1);
  }
  if (!block.from_gpus) return ShareOut(block.range, element_size, job.nodes()->costs, shares);
  return ShareEvenly(block.range, element_size, job.nodes()->nccl_lanes,
                     block.sequence + block.index, shares);
}

bool NeedsScratch(const Job& job, const Operation& operation, const Block& block) {
  if (operation.paired() && job.pairs().at(operation.spec.sequence).away == Away::kNo) return false;
  // A part of no elements is only agreed on.
  if (job.nodes() != nullptr && operation.spec.OnGpu()) return block.range.count != 0;
  const bool to_one = Reduces(operation.spec.kind) && !IsShared(operation.spec.kind);
  return job.nodes() != nullptr && to_one && job.local().size() > 1 && !job.IsHere(block.root);
}

bool AllocateScratch(Job& job, const Operation& operation, Block& block) {
  if (operation.spec.OnGpu()) return AllocateGpuScratch(job, operation, block);
  Job::HostScratch& host = job.host_scratch;
  if (!host.memory) {
    Result<Mapping> mapping = Mapping::Anonymous(kScratchBlocks * job.nodes()->block_bytes);
    if (!mapping) return false;
    host.memory = std::move(mapping).value();
    for (std::size_t i = kScratchBlocks; i > 0; --i) {
      host.free.push_back(host.memory.data() + (i - 1) * job.nodes()->block_bytes);
    }
  }
  HR_CHECK(host.free.size() <= kScratchBlocks, host.free.size());
  if (host.free.empty()) return false;
  HR_CHECK(block.scratch == nullptr, block.sequence);
  block.scratch = host.free.back();
  host.free.pop_back();
  return true;
}

void ReturnScratch(Job& job, Block& block) {
  ReturnGpuScratch(job, block);
  if (block.scratch == nullptr) return;
  HR_CHECK(job.host_scratch.free.size() < kScratchBlocks, block.sequence);
  job.host_scratch.free.push_back(std::exchange(block.scratch, nullptr));
}

}  // namespace headrace::service
