// What the configuration, which was checked, means for the parts that daemon.cc builds. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "service/config/config.h"
#include "service/config/memory_found.h"
#include "service/peers/peers_thread.h"
#include "service/rpc/control_options.h"
#include "transport/memory/cuda_device.h"

namespace headrace::service {

// `nccl_lanes` of the lanes between nodes carry GPUs' memory by themselves.
PeerOptions PeerOptionsOf(const Config& config, std::uint32_t nccl_lanes);

// What was found of a GPU, for the log of the start: also how processes share it.
std::string GpuText(const transport::CudaDevice& gpu);
// Whether the GPU holds what the configuration gives one sum or move.
Status CheckGpuFits(const Config& config, const transport::CudaDevice& gpu);

// `gpus_missing` says why there are none; other services reach this one at `peer_port`; `memory` is
// what uids have a share of by default.
ControlOptions ControlOptionsOf(const Config& config, const std::string& gpus_missing,
                                bool has_lanes, unsigned peer_port, const MemoryFound& memory);

// What encodings may leave out of the sums that this service makes as a server, in bytes, over all
// jobs: as much as one uid may hand over. 0: no limit.
std::uint64_t ServedResidualsMax(const Config& config, const MemoryFound& memory);

// The network devices of that lane between nodes, its own first: of `devices`, one for each lane,
// those that stand in for it are the next ones in turn. Each is a set of UCX's things.
inline constexpr std::size_t kRailsOfLaneMax = 3;
std::vector<std::string> RailsOfLane(const std::vector<std::string>& devices, std::size_t lane);

}  // namespace headrace::service
