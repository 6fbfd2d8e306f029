#include "service/daemon.h"

#include <fmt/format.h>
#include <spdlog/logger.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "ipc/board.h"
#include "service/actor/runner.h"
#include "service/actor/sleeper.h"
#include "service/config_address.h"
#include "service/control/control.h"
#include "service/control/control_inbox.h"
#include "service/dispatch/dispatch.h"
#include "service/instance.h"
#include "service/lane/lane.h"
#include "service/membership/agreement.h"
#include "service/watch/watch.h"
#include "transport/memory/gpus.h"
#include "transport/nccl/nccl_transport.h"
#include "transport/nvlink/nvlink_transport.h"
#include "transport/reduce/reduce.h"
#include "transport/shm/shm_transport.h"
#ifdef HEADRACE_HAVE_UCX
#include "transport/exchange/exchange.h"
#include "transport/nccl/nccl_network.h"
#include "transport/ucx/names.h"
#include "transport/ucx/signals.h"
#include "transport/ucx/ucx_wire.h"
#endif

namespace headrace::service {
namespace {

// In flight on the lane between GPUs, per job, at least: launches are to follow each other.
constexpr std::uint64_t kGpuCreditBytes = std::uint64_t{256} << 20;

std::uint32_t LaneThreads(const Config& config) {
  if (config.lane_threads != 0) return static_cast<std::uint32_t>(config.lane_threads);
  return std::max(1U, std::thread::hardware_concurrency());
}

transport::Algorithm AlgorithmOf(std::string_view name) {
  using transport::Algorithm;
  // The configuration has checked the name.
  constexpr std::array<std::pair<std::string_view, Algorithm>, 4> kNames = {
      {{"direct-exchange", Algorithm::kDirectExchange},
       {"recursive-doubling", Algorithm::kRecursiveDoubling},
       {"direct-scatter", Algorithm::kDirectScatter},
       {"ring", Algorithm::kRing}}};
  for (const auto& [known, algorithm] : kNames) {
    if (known == name) return algorithm;
  }
  return Algorithm::kAuto;
}

// Other nodes are met where an address or the role says so.
bool SpansNodes(const Config& config) {
  return !config.node_address.empty() || config.role == "server";
}

PeerOptions PeersOf(const Config& config, std::uint32_t gpu_lanes) {
  PeerOptions peers{.node_name = config.node_name,
                    .address = config.node_address,
                    .server = config.role == "server",
                    .rendezvous = config.rendezvous,
                    .detection_ns = static_cast<TimeNs>(config.detection_ms) * kMillisecond,
                    .peers = {},
                    .architecture = config.architecture,
                    .block_bytes = config.block_bytes,
                    .algorithm = AlgorithmOf(config.network_algorithm),
                    .gpu_lanes = gpu_lanes,
                    .tls_authority = config.tls_authority,
                    .tls_certificate = config.tls_certificate,
                    .tls_key = config.tls_key,
                    .plain_text = config.plain_text};
  // The configuration has been checked, so this is not an error here.
  if (Result<std::vector<ConfiguredPeer>> known = ParsePeers(config.peers); known) {
    for (const ConfiguredPeer& peer : *known) peers.peers[peer.name] = peer.address.Text();
  }
  return peers;
}

ControlOptions OptionsOf(const Config& config, const std::string& gpus_missing,
                         std::uint32_t gpu_lanes) {
  return {.socket_path = config.socket_path,
          .socket_mode = static_cast<std::uint32_t>(config.socket_mode),
          .version = std::string(Version()),
          .config_text = PrintConfig(config),
          .reduce_target = std::string(transport::SimdTargetName()),
          .operation_timeout_ms = static_cast<std::uint32_t>(config.operation_timeout_ms),
          .drain_timeout_ns = static_cast<TimeNs>(config.drain_timeout_ms) * kMillisecond,
          // The configuration has checked the name.
          .policy = plan::PolicyNamed(config.policy).value_or(plan::Policy::kExact),
          .quotas = {.sessions = config.sessions_per_uid, .memory = config.memory_per_uid},
          .gpus_missing = gpus_missing.empty()
                              ? ""
                              : fmt::format("this service uses no GPUs: {}", gpus_missing),
          .peers = PeersOf(config, gpu_lanes),
          .http_address = config.http_address};
}

EventSink LogTo(std::shared_ptr<spdlog::logger> log) {
  return [log = std::move(log)](const Event& event) {
    if (event.code == Code::kOk) {
      log->info("{}", event.text);
    } else {
      log->warn("{}: {}", CodeName(event.code), event.text);
    }
  };
}

// The node's GPUs and what carries blocks between them; or, without them, why.
struct GpuSet {
  std::string missing;  // empty: there are GPUs
  std::unique_ptr<transport::Gpus> gpus;
  std::string lane_name;
  std::unique_ptr<transport::Transport> transport;
  std::unique_ptr<Sleeper> sleeper;  // of the lane's thread
};

transport::NcclOptions NcclOptionsOf(const Config& config) {
  transport::NcclOptions options{.ctas_max = static_cast<std::uint32_t>(config.gpu_ctas)};
  if (!config.nccl_library.empty()) options.library = config.nccl_library;
  return options;
}

Result<std::unique_ptr<transport::Transport>> OpenGpuTransport(const Config& config,
                                                               const transport::Gpus& gpus,
                                                               spdlog::logger& log) {
  if (config.gpu_lane == "nccl") {
    transport::NcclOptions options = NcclOptionsOf(config);
    options.tell_kernels = [&log](const std::string& reason) {
      log.info("gpu_lane is nccl, and what NCCL does not take goes by kernels, as now: {}", reason);
    };
    auto nccl = transport::NcclTransport::Open(gpus, options);
    if (!nccl) return nccl.error();
    return std::unique_ptr<transport::Transport>(std::move(nccl).value());
  }
  auto nvlink = transport::NvlinkTransport::Open(
      gpus, {.ctas = static_cast<std::uint32_t>(config.gpu_ctas),
             .multicast = config.gpu_multicast == "on",
             .tell_no_multicast = [&log](const std::string& reason) {
               log.warn("gpu_multicast is on, but GPUs sum by kernels: {}", reason);
             }});
  if (!nvlink) return nvlink.error();
  return std::unique_ptr<transport::Transport>(std::move(nvlink).value());
}

Result<GpuSet> OpenGpuSet(const Config& config, spdlog::logger& log) {
  GpuSet set;
  const std::string library =
      config.cuda_library.empty() ? std::string(transport::kCudaLibrary) : config.cuda_library;
  Result<std::unique_ptr<transport::Gpus>> gpus = transport::Gpus::Open(library);
  if (!gpus) return gpus.error();
  set.gpus = std::move(gpus).value();
  set.lane_name = config.gpu_lane + "0";
  Result<std::unique_ptr<transport::Transport>> opened = OpenGpuTransport(config, *set.gpus, log);
  if (!opened) return opened.error().Within(fmt::format("open lane {}", set.lane_name));
  set.transport = std::move(opened).value();
  Result<std::unique_ptr<Sleeper>> sleeper = Sleeper::Create();
  if (!sleeper) return sleeper.error();
  set.sleeper = std::move(sleeper).value();
  return set;
}

// As the configuration wants it: without GPUs the service does everything else.
Result<GpuSet> FindGpus(const Config& config, spdlog::logger& log) {
  if (config.gpu == "off") {
    return GpuSet{.missing = "its configuration has gpu = off: set gpu = auto and start it again",
                  .gpus = nullptr,
                  .lane_name = {},
                  .transport = nullptr,
                  .sleeper = nullptr};
  }
  Result<GpuSet> set = OpenGpuSet(config, log);
  if (set) {
    for (const transport::CudaDevice& gpu : set->gpus->devices()) {
      log.info("GPU {}: {}, {} MiB", gpu.ordinal, gpu.name, gpu.memory_size >> 20U);
    }
    return set;
  }
  if (config.gpu == "on") return set.error().Within("use GPUs (gpu = on)");
  log.info("no GPUs are used: {}", set.error().text());
  GpuSet none;
  none.missing = set.error().text();
  return none;
}

// The lane between GPUs, on a thread of its own: it asks GPUs how far they are, again and again.
struct GpuLane {
  GpuLane(std::uint8_t index, GpuSet& set, Dispatch& dispatch)
      : waker(*set.sleeper),
        lane(index, set.lane_name, *set.transport, waker, *set.sleeper, dispatch.door()) {}

  LaneWaker waker;
  Lane lane;
};

#ifdef HEADRACE_HAVE_UCX
// What a lane between nodes is built on, in build order: a thread's sleeper, the wire, what sums
// over it, and, where the lane is a GPU's own, NCCL in front of that.
struct Rail {
  std::string name;
  std::unique_ptr<Sleeper> sleeper;
  std::unique_ptr<transport::UcxWire> wire;
  std::unique_ptr<transport::Exchange> exchange;
  std::unique_ptr<transport::NcclNetwork> nccl;  // null: no GPU's

  transport::NetworkTransport& network() const {
    if (nccl) return *nccl;
    return *exchange;
  }
};

Result<Rail> OpenRail(const Config& config, std::size_t index, const std::string& device) {
  Rail rail{.name = fmt::format("ucx{}", index),
            .sleeper = nullptr,
            .wire = nullptr,
            .exchange = nullptr,
            .nccl = nullptr};
  transport::UcxOptions options;
  options.net_devices = device;
  if (!config.network_transports.empty()) options.transports = config.network_transports;
  Result<std::unique_ptr<transport::UcxWire>> wire = transport::UcxWire::Open(options);
  if (!wire) return wire.error().Within(fmt::format("open lane {}", rail.name));
  rail.wire = std::move(wire).value();
  Result<std::unique_ptr<Sleeper>> sleeper = Sleeper::Create();
  if (!sleeper) return sleeper.error();
  rail.sleeper = std::move(sleeper).value();
  if (Status status = rail.sleeper->WatchLevel(rail.wire->event_fd()); !status) {
    return status.error().Within(fmt::format("listen to lane {}", rail.name));
  }
  rail.exchange = std::make_unique<transport::Exchange>(
      *rail.wire, transport::ExchangeOptions{.name = rail.name});
  return rail;
}

// Lanes between nodes that are a GPU's own: number g is that of GPU g. The name of what is wrong,
// and the remedy, where there cannot be as many.
Result<std::size_t> CountGpuLanes(const Config& config, const GpuSet& gpus) {
  if (config.gpu_network != "nccl") return std::size_t{0};
  constexpr std::string_view kRemedy = "or set gpu_network to staged";
  if (gpus.gpus == nullptr) {
    return Error(Code::kUnavailable, fmt::format("gpu_network is nccl, and this service uses no "
                                                 "GPUs: {}; mend that, {}",
                                                 gpus.missing, kRemedy));
  }
  const std::size_t count = gpus.gpus->count();
  if (count <= kRailsMax) return count;
  return Error(Code::kUnavailable,
               fmt::format("gpu_network is nccl, which takes a lane between nodes for each GPU: "
                           "there are {} GPUs, and at most {} lanes; show the service fewer by "
                           "CUDA_VISIBLE_DEVICES, {}",
                           count, kRailsMax, kRemedy));
}

Status OpenNccl(const Config& config, const transport::Gpus& gpus, std::size_t index, Rail& rail) {
  transport::NcclNetworkOptions options;
  options.device = static_cast<transport::CuDevice>(index);
  options.nccl = NcclOptionsOf(config);
  auto nccl = transport::NcclNetwork::Open(*rail.exchange, gpus, options);
  if (!nccl) {
    return nccl.error().Within(
        fmt::format("open lane {} for GPU {} (gpu_network = nccl; staged does without NCCL)",
                    rail.name, index));
  }
  rail.nccl = std::move(nccl).value();
  return {};
}

// One for each device; where GPUs have lanes of their own and are more than that, further ones over
// the same devices.
Result<std::vector<Rail>> OpenRails(const Config& config, const GpuSet& gpus) {
  std::vector<Rail> rails;
  if (!SpansNodes(config)) return rails;
  transport::TakeSignalsBackFromUcx();
  Result<std::vector<std::string>> devices = ParseRails(config.rails);
  if (!devices) return devices.error();
  if (devices->empty()) devices->emplace_back();
  const Result<std::size_t> gpu_lanes = CountGpuLanes(config, gpus);
  if (!gpu_lanes) return gpu_lanes.error();
  for (std::size_t i = 0; i < std::max(devices->size(), *gpu_lanes); ++i) {
    Result<Rail> rail = OpenRail(config, i, (*devices)[i % devices->size()]);
    if (!rail) return rail.error();
    if (i < *gpu_lanes) {
      if (Status opened = OpenNccl(config, *gpus.gpus, i, *rail); !opened) return opened.error();
    }
    rails.push_back(std::move(rail).value());
  }
  return rails;
}

// A lane between nodes and all it stands on, in build order.
struct NodeLane {
  NodeLane(std::uint8_t index, Rail rail_of_it, Dispatch& dispatch, Door<ControlMessage>& control)
      : rail(std::move(rail_of_it)),
        waker(*rail.sleeper),
        lane(index, rail.name, rail.network(), waker, *rail.sleeper, dispatch.door(), control) {}

  Rail rail;
  LaneWaker waker;
  Lane lane;
};
#else
struct Rail {};
Result<std::vector<Rail>> OpenRails(const Config& config, const GpuSet& /*gpus*/) {
  if (!SpansNodes(config)) return std::vector<Rail>{};
  return Error(Code::kUnavailable,
               "node_address or role asks for other nodes, and this headraced was built without "
               "UCX: install libucx-dev and build again");
}
#endif

}  // namespace

// Members stand in build order: what a part refers to stands above it.
struct Daemon::Parts {
  Parts(const Config& config, std::shared_ptr<spdlog::logger> logger, Instance claimed,
        ipc::BoardFile board_file, std::unique_ptr<ControlInbox> inbox,
        std::vector<std::unique_ptr<Sleeper>> thread_sleepers, GpuSet gpu_set,
        std::vector<Rail> rails)
      : log(std::move(logger)),
        gpus(std::move(gpu_set)),
        instance(std::move(claimed)),
        board(std::move(board_file)),
        control_inbox(std::move(inbox)),
        sleepers(std::move(thread_sleepers)),
        spin_ns(static_cast<TimeNs>(config.spin_us) * kMicrosecond),
        watch(*watch_sleeper(), *control_inbox, board.layout(), LogTo(log), gpus.gpus.get()),
        dispatch(*data_sleeper(), *data_sleeper(), *control_inbox, watch.door(), board.layout()),
        lane_waker(*lane_sleeper()),
        shm(LaneThreads(config), lane_waker),
        lane(0, "shm0", shm, lane_waker, *lane_sleeper(), dispatch.door()) {
    std::vector<LanePort> ports{{.name = "shm0",
                                 .transport = std::string(shm.capabilities().name),
                                 .threads = shm.capabilities().threads,
                                 .credit_bytes = config.credit_bytes,
                                 .door = &lane.door()}};
    if (gpus.gpus != nullptr) AddGpuLane(config, ports);
    AddNodeLanes(config, std::move(rails), ports);
    for (const LanePort& port : ports) lane_names.push_back(port.name);
    dispatch.ConnectLanes(std::move(ports));
    watch.ConnectDispatch(dispatch.door());
    dispatch.ReportLate(static_cast<TimeNs>(config.late_ms) * kMillisecond);
    if (config.interleave) dispatch.Interleave();
    dispatch.LimitPosts(config.operations_per_uid);
  }

  void AddGpuLane(const Config& config, std::vector<LanePort>& ports) {
    gpu_lane = std::make_unique<GpuLane>(static_cast<std::uint8_t>(ports.size()), gpus, dispatch);
    ports.push_back({.name = gpus.lane_name,
                     .transport = std::string(gpus.transport->capabilities().name),
                     .threads = 1,
                     .credit_bytes = std::max(config.credit_bytes, kGpuCreditBytes),
                     .door = &gpu_lane->lane.door(),
                     .place = LanePlace::kInNodeOnGpus});
  }

  void AddNodeLanes([[maybe_unused]] const Config& config, [[maybe_unused]] std::vector<Rail> rails,
                    [[maybe_unused]] std::vector<LanePort>& ports) {
#ifdef HEADRACE_HAVE_UCX
    for (Rail& rail : rails) {
      const auto index = static_cast<std::uint8_t>(ports.size());
      if (const std::string warning = transport::SlowWireWarning(rail.wire->Names());
          !warning.empty()) {
        log->warn("lane {}: {}", rail.name, warning);
      }
      node_lanes.push_back(
          std::make_unique<NodeLane>(index, std::move(rail), dispatch, *control_inbox));
      NodeLane& added = *node_lanes.back();
      const transport::NetworkTransport& network = added.rail.network();
      if (added.rail.nccl) ++gpu_lanes;
      log->info("lane {} between nodes over {}", added.rail.name, network.WireNames());
      network_lanes.push_back(
          {.number = index, .address = network.address(), .door = &added.lane.door()});
      ports.push_back({.name = added.rail.name,
                       .transport = network.WireNames(),
                       .threads = 1,
                       .credit_bytes = config.network_credit_bytes,
                       .door = &added.lane.door(),
                       .place = LanePlace::kBetweenNodes});
    }
    if (gpus.gpus == nullptr || node_lanes.empty()) return;
    log->info("{}", gpu_lanes == 0 ? node_lanes.front()->rail.wire->GpuPath()
                                   : fmt::format("GPU memory goes to other nodes {}",
                                                 DescribeGpuLanes(gpu_lanes)));
#endif
  }

  // Dispatch and the lane share the data thread unless the lane has a third sleeper of its own.
  Sleeper* data_sleeper() { return sleepers[0].get(); }
  Sleeper* watch_sleeper() { return sleepers[1].get(); }
  Sleeper* lane_sleeper() { return sleepers.size() > 2 ? sleepers[2].get() : data_sleeper(); }

  std::shared_ptr<spdlog::logger> log;  // shared with main, which made it
  GpuSet gpus;                          // outlives all memory that is mapped for them
  Instance instance;
  ipc::BoardFile board;
  std::unique_ptr<ControlInbox> control_inbox;
  std::vector<std::unique_ptr<Sleeper>> sleepers;
  TimeNs spin_ns;
  Watch watch;
  Dispatch dispatch;
  LaneWaker lane_waker;
  transport::ShmTransport shm;
  Lane lane;
  std::unique_ptr<GpuLane> gpu_lane;  // null without GPUs
#ifdef HEADRACE_HAVE_UCX
  std::vector<std::unique_ptr<NodeLane>> node_lanes;
#endif
  std::vector<NetworkLane> network_lanes;
  std::uint32_t gpu_lanes = 0;  // of these
  std::vector<std::string> lane_names;
  std::unique_ptr<Control> control;
};

Result<std::unique_ptr<Daemon>> Daemon::Create(const Config& config,
                                               std::shared_ptr<spdlog::logger> log) {
  Result<Instance> instance = Instance::Claim(config.socket_path, "headraced");
  if (!instance) return instance.error();
  if (!instance->notice().empty()) log->warn("{}", instance->notice());
  Result<ipc::BoardFile> board =
      ipc::BoardFile::Create(config.board_path, static_cast<std::uint32_t>(config.board_mode));
  if (!board) return board.error();
  if (!board->notice().empty()) log->warn("{}", board->notice());
  Result<std::unique_ptr<ControlInbox>> inbox = ControlInbox::Create();
  if (!inbox) return inbox.error();
  std::vector<std::unique_ptr<Sleeper>> sleepers;
  for (int i = 0; i < (config.dedicated_lanes ? 3 : 2); ++i) {
    Result<std::unique_ptr<Sleeper>> sleeper = Sleeper::Create();
    if (!sleeper) return sleeper.error();
    sleepers.push_back(std::move(sleeper).value());
  }
  Result<GpuSet> gpus = FindGpus(config, *log);
  if (!gpus) return gpus.error();
  const std::string gpus_missing = gpus->missing;
  Result<std::vector<Rail>> rails = OpenRails(config, *gpus);
  if (!rails) return rails.error();
  auto parts = std::make_unique<Parts>(
      config, log, std::move(instance).value(), std::move(board).value(), std::move(inbox).value(),
      std::move(sleepers), std::move(gpus).value(), std::move(rails).value());
  Result<std::unique_ptr<Control>> control = Control::Create(
      OptionsOf(config, gpus_missing, parts->gpu_lanes), {.inbox = *parts->control_inbox,
                                                          .dispatch = parts->dispatch.door(),
                                                          .watch = parts->watch.door(),
                                                          .board = parts->board.layout().service,
                                                          .log = *log,
                                                          .network_lanes = parts->network_lanes,
                                                          .lane_names = parts->lane_names,
                                                          .whole_board = &parts->board.layout()});
  if (!control) return control.error();
  parts->control = std::move(control).value();
  return std::unique_ptr<Daemon>(new Daemon(std::move(parts)));
}

Daemon::Daemon(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Daemon::~Daemon() = default;

int Daemon::Run(Supervisor supervisor) {
  const bool dedicated = parts_->lane_sleeper() != parts_->data_sleeper();
  std::vector<Actor*> data{&parts_->dispatch};
  if (!dedicated) data.push_back(&parts_->lane);
  const Runner watch_thread("hr-watch", {&parts_->watch}, *parts_->watch_sleeper(), 0);
  const Runner data_thread("hr-data", std::move(data), *parts_->data_sleeper(), parts_->spin_ns);
  std::unique_ptr<Runner> lane_thread;
  if (dedicated) {
    lane_thread = std::make_unique<Runner>("hr-lane0", std::vector<Actor*>{&parts_->lane},
                                           *parts_->lane_sleeper(), parts_->spin_ns);
  }
  std::unique_ptr<Runner> gpu_thread;
  if (parts_->gpu_lane != nullptr) {
    gpu_thread = std::make_unique<Runner>("hr-gpu0", std::vector<Actor*>{&parts_->gpu_lane->lane},
                                          *parts_->gpus.sleeper, parts_->spin_ns);
  }
  std::vector<std::unique_ptr<Runner>> node_threads;
#ifdef HEADRACE_HAVE_UCX
  for (const std::unique_ptr<NodeLane>& lane : parts_->node_lanes) {
    node_threads.push_back(std::make_unique<Runner>("hr-" + lane->rail.name,
                                                    std::vector<Actor*>{&lane->lane},
                                                    *lane->rail.sleeper, parts_->spin_ns));
  }
#endif
  return parts_->control->Run(std::move(supervisor));
}

}  // namespace headrace::service
