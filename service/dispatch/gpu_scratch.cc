// The scratch through which blocks of GPUs pass on their way to other nodes: which of it a block
// takes, and what people are told of it.
#include <fmt/format.h>

#include <array>
#include <utility>

#include "service/dispatch/cut.h"
#include "service/dispatch/flow.h"
#include "service/dispatch/job.h"

namespace headrace::service {
namespace {

std::string WhyThroughTheHost(const Job& job) {
  const JobNodes& nodes = *job.nodes();
  if (nodes.gpu_lanes == 0) return "gpu_network = staged";
  if (nodes.servers_count != 0) return "servers, which have no GPUs, sum for this job";
  return "what has no elements is a meeting only";
}

std::string DescribeGpuLanes(const JobNodes& nodes) {
  return nodes.gpu_lanes == 1 ? "GPU 0" : fmt::format("GPUs 0 to {}", nodes.gpu_lanes - 1);
}

}  // namespace

std::uint32_t Job::SharesOf(const Operation& operation, const Block& block,
                            std::array<Range, kRailsMax>& shares) const {
  const std::size_t element_size = SizeOf(operation.shape.dtype);
  if (!block.from_gpus) return ShareOut(block.range, element_size, nodes_->costs, shares);
  return ShareEvenly(block.range, element_size, nodes_->gpu_lanes, block.sequence + block.index,
                     shares);
}

bool Job::TakeGpuScratch(const Operation& operation, Block& block) {
  GpuScratch& scratch = ScratchOf(block);
  const std::size_t element_size = SizeOf(operation.shape.dtype);
  block.from_gpus = CrossesFromGpus(operation.shape, *nodes_);
  if (!block.from_gpus) {
    const Scratch::Place place =
        scratch[0].Take(block.range.count * element_size, nodes_->block_bytes);
    block.scratch = place.on_host;
    block.scratch_on_gpus[0] = place.on_gpus;
    return place.on_gpus != nullptr;
  }
  std::array<Range, kRailsMax> shares;
  const std::uint32_t lanes_count = SharesOf(operation, block, shares);
  bool complete = true;
  for (std::uint32_t lane = 0; lane < lanes_count; ++lane) {
    if (shares[lane].count == 0) continue;
    const Scratch::Place place = scratch[1 + lane].Take(shares[lane].count * element_size,
                                                        nodes_->block_bytes / lanes_count);
    block.scratch_on_gpus[lane] = place.on_gpus;
    complete = complete && place.on_gpus != nullptr;
  }
  if (!complete) GiveGpuScratch(block);
  return complete;
}

void Job::GiveGpuScratch(Block& block) {
  for (std::size_t part = 0; part < kRailsMax; ++part) {
    std::byte* const place = std::exchange(block.scratch_on_gpus[part], nullptr);
    if (place == nullptr) continue;
    ScratchOf(block)[block.from_gpus ? 1 + part : 0].Give(place);
    block.scratch = nullptr;
  }
  block.from_gpus = false;
}

// One word about each thing that differs: GPUs whose memory is as wanted say it once for all.
void Flow::ScratchMade(Job& job, struct ScratchMade message, TimeNs now) {
  if (!message.memory) {
    const Error error = message.memory.error().Within("take GPU memory to other nodes");
    return FailJob(job, {error.code(), error.text()}, Found::kHere, now);
  }
  const std::string room =
      fmt::format("{} blocks of up to {} bytes at a time",
                  message.memory->size() / message.place_bytes, message.place_bytes);
  if (message.gpu == transport::kHost) {
    Tell(job, Code::kOk,
         fmt::format("GPU memory reaches other nodes through pinned host memory, {} ({})", room,
                     WhyThroughTheHost(job)));
  } else if (!message.instead.empty()) {
    Tell(job, Code::kUnavailable,
         fmt::format("the share of GPU {} reaches other nodes by NCCL from pinned host memory, {}, "
                     "which is slower, because memory of the GPU could not be had: {}",
                     message.gpu, room, message.instead));
  } else if (message.gpu == 0) {
    Tell(job, Code::kOk,
         fmt::format("GPU memory reaches other nodes by NCCL (gpu_network = nccl), from memory of "
                     "{}, each with {}",
                     DescribeGpuLanes(*job.nodes()), room));
  }
  blocks_.AddScratch(job, std::move(message), now);
}

}  // namespace headrace::service
