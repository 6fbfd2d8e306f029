// Text that says which rank waits for which, for an operation that timed out: the rank that it
// waits for may itself wait for another, in this job or in another of the same processes (a process
// group of torch.distributed is a job), and so on round a cycle.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "service/dispatch/job/job.h"

namespace headrace::service {

// The rank whose post an open operation or pair waits for; nothing where it waits for no rank in
// particular, for a GPU or for a lane.
std::optional<std::uint32_t> AwaitedRank(const Job& job, const Operation& operation);

// What holds up the rank that an operation waits for: "; rank 1 (pid 12) waits in pair 2 [receive
// ...] for rank 0 (pid 11)", and so on from there, at most kChainMax times. Empty where nothing is
// known: it waits for no rank, or for one of another node, or one that has nothing open that
// another rank has not posted.
inline constexpr int kChainMax = 4;
std::string DescribeWaitChain(const Jobs& jobs, const Job& job, const Operation& operation);

}  // namespace headrace::service
