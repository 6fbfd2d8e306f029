#include "service/dispatch/observe/scratch_text.h"

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace headrace::service {
namespace {

std::string WhyThroughTheHost(const Job& job) {
  const JobNodes& nodes = *job.nodes();
  if (nodes.nccl_lanes == 0) return "gpu_network = staged";
  if (nodes.servers_count != 0) return "servers, which have no GPUs, sum for this job";
  return "what has no elements is a meeting only";
}

std::string DescribeGpus(const JobNodes& nodes) {
  return nodes.nccl_lanes == 1 ? "GPU 0" : fmt::format("GPUs 0 to {}", nodes.nccl_lanes - 1);
}

}  // namespace

std::optional<Failure> DescribeScratch(const Job& job, const ScratchMade& message) {
  const std::uint64_t blocks_count = message.memory->size() / message.place_bytes;
  if (message.for_factors) {
    return Failure{
        Code::kOk,
        fmt::format("factors that GPUs make of matrices reach other nodes through pinned host "
                    "memory, those of {} blocks at a time, up to {} bytes each (powersgd)",
                    blocks_count, message.place_bytes)};
  }
  const std::string room =
      fmt::format("{} blocks of up to {} bytes at a time", blocks_count, message.place_bytes);
  if (message.gpu == transport::kHost) {
    return Failure{Code::kOk,
                   fmt::format("GPU memory reaches other nodes through pinned host memory, {} ({})",
                               room, WhyThroughTheHost(job))};
  }
  if (job.nodes()->nccl_lanes == 0) {
    if (message.instead.empty()) {
      return Failure{
          Code::kOk,
          fmt::format("GPU {} compresses what goes to other nodes, in memory of its own, "
                      "{} (gpu_codecs = on)",
                      message.gpu, room)};
    }
    return Failure{Code::kUnavailable,
                   fmt::format("the host compresses what GPU {} would for other nodes, in pinned "
                               "memory, {}, because memory of the GPU could not be had: {}",
                               message.gpu, room, message.instead)};
  }
  if (!message.instead.empty()) {
    return Failure{
        Code::kUnavailable,
        fmt::format("the share of GPU {} reaches other nodes by NCCL from pinned host memory, {}, "
                    "which is slower, because memory of the GPU could not be had: {}",
                    message.gpu, room, message.instead)};
  }
  if (message.gpu != 0) return {};
  return Failure{Code::kOk,
                 fmt::format("GPU memory reaches other nodes by NCCL (gpu_network = nccl), from "
                             "memory of {}, each with {}",
                             DescribeGpus(*job.nodes()), room)};
}

}  // namespace headrace::service
