// Messages between peers and dispatch about a job, in either direction: an event from dispatch
// happened on this node, one from peers on another node or on the way to it.
#pragma once

#include <cstdint>
#include <string>

#include "ipc/base/error.h"
#include "ipc/base/ids.h"
#include "service/session/steering.h"

namespace headrace::service {

// The job cannot go on. The first cause found counts; everything open ends with it, on all nodes.
struct JobFailed {
  JobId job;
  Code code = Code::kInternal;
  std::string cause;
};
// A rank has left in an orderly way after its first `posted` operations.
struct RankLeft {
  JobId job;
  std::uint32_t rank = 0;
  std::uint64_t posted = 0;      // operations, gradients not counted
  std::uint64_t iterations = 0;  // of which it posted every gradient
  std::string cause{};           // "rank 3 (pid 12) on node b left the job"; from dispatch empty
};
// A person steers the job; who may was checked. Peers passes it on to every node of the job, this
// one too, in one order for all; dispatch carries it out.
struct SteerJob {
  JobId job;
  Steering steering;
};

}  // namespace headrace::service
