// What blocks travel by, as the configuration wants it: the lane between the node's GPUs, and the
// lanes between nodes. The lane over shared memory needs nothing and is made by the daemon itself.
#pragma once

#include <spdlog/logger.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ipc/base/result.h"
#include "service/actor/late_wake.h"
#include "service/actor/sleeper.h"
#include "service/config/config.h"
#include "service/dispatch/dispatch.h"
#include "service/lane/lane.h"
#include "transport/memory/gpus.h"
#ifdef HEADRACE_HAVE_UCX
#include "transport/exchange/device_codec.h"
#include "transport/exchange/exchange.h"
#include "transport/nccl/nccl_network.h"
#include "transport/ucx/ucx_rails.h"
#endif

namespace headrace::service {

// The node's GPUs and what carries blocks between them; or, without them, why.
struct GpuSet {
  std::string missing;  // empty: there are GPUs
  std::unique_ptr<transport::Gpus> gpus;
  std::string lane_name;
  std::unique_ptr<transport::Transport> transport;
  std::unique_ptr<Sleeper> sleeper;  // of the lane's thread
};

// The lane between GPUs, on a thread of its own: it asks GPUs how far they are, again and again.
struct GpuLane {
  GpuLane(std::uint8_t index, GpuSet& set, Dispatch& dispatch)
      : waker(*set.sleeper),
        lane(index, set.lane_name, *set.transport, waker, *set.sleeper, dispatch.inbox()) {}

  LaneWaker waker;
  Lane lane;
};

#ifdef HEADRACE_HAVE_UCX
// What a lane between nodes is built on, in build order: a thread's sleeper, the wire, what sums
// over it, with codecs on GPUs where there are some, and, where the lane is a GPU's own, NCCL in
// front of that.
struct Rail {
  std::string name;
  std::unique_ptr<Sleeper> sleeper;
  std::unique_ptr<transport::UcxRails> wire;
  std::shared_ptr<transport::DeviceCodec> gpu_codec;      // null: none; also the exchange's
  std::shared_ptr<transport::ServedResiduals> residuals;  // also the exchange's, of every rail
  std::unique_ptr<transport::Exchange> exchange;
  std::unique_ptr<transport::NcclNetwork> nccl;  // null: no GPU's

  transport::NetworkTransport& network() const {
    if (nccl) return *nccl;
    return *exchange;
  }
};

// A lane between nodes and all it stands on, in build order. Lane and dispatch wake each other
// late.
struct NodeLane {
  NodeLane(std::uint8_t index, Rail made, Wakeable& data_thread, Dispatch& dispatch,
           InboxWriter<PeersMessage>& peers)
      : rail(std::move(made)),
        waker(*rail.sleeper),
        dispatch_wake(data_thread),
        to_dispatch(dispatch.inbox(), dispatch_wake),
        lane(index, rail.name, rail.network(), waker, *rail.sleeper, to_dispatch, peers),
        lane_wake(*rail.sleeper),
        from_dispatch(lane.inbox(), lane_wake) {}
  // The transport before the lane, whose measurements of links move bytes of the lane's own: until
  // the exchange is gone a device may be at them.
  ~NodeLane() {
    rail.nccl.reset();
    rail.exchange.reset();
  }
  NodeLane(const NodeLane&) = delete;
  NodeLane& operator=(const NodeLane&) = delete;

  Rail rail;
  LaneWaker waker;
  LateWake dispatch_wake;
  LateInbox<DispatchMessage> to_dispatch;
  Lane lane;
  LateWake lane_wake;
  LateInbox<LaneMessage> from_dispatch;
};
#else
struct Rail {};
#endif

// What blocks travel by, which is opened before anything else is built on it.
struct Transports {
  GpuSet gpus;
  std::vector<Rail> rails;
};

// Opens what the configuration asks for; the error names what is missing and the remedy. Without
// GPUs, where they are not asked for, `gpus.missing` says why.
Result<Transports> OpenTransports(const Config& config, spdlog::logger& log);

}  // namespace headrace::service
