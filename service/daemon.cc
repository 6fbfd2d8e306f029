// What the service consists of. Members of Daemon::Parts stand in build order, one actor or
// resource a line; Daemon::Run gives the actors their threads:
//   hr-data     dispatch, and the lane over shared memory unless it is dedicated (hr-lane0)
//   hr-mapping  maps and unmaps clients' memory
//   hr-watch    computes plans; writes the log and the board's events
//   hr-gpu0, hr-ucx0, ...  one further lane each
//   hr-peers, hr-http  event loops of other services and of HTTP clients, from Create on
//   main        rpc, the event loop of local clients; signals, the watchdog
#include "service/daemon.h"

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ipc/board.h"
#include "service/actor/actor_set.h"
#include "service/actor/runner.h"
#include "service/actor/sleeper.h"
#include "service/cluster/leader_names.h"
#include "service/config/config_address.h"
#include "service/config/instance.h"
#include "service/config/memory_found.h"
#include "service/daemon_options.h"
#include "service/daemon_transports.h"
#include "service/dispatch/dispatch.h"
#include "service/http/http_thread.h"
#include "service/lane/lane.h"
#include "service/log/log_sink.h"
#include "service/loop/listen.h"
#include "service/loop/loop_inbox.h"
#include "service/mapping/mapper.h"
#include "service/peers/peers_thread.h"
#include "service/peers/tls_options.h"
#include "service/rpc/control.h"
#include "service/watch/watch.h"
#include "transport/probe/codec_probe.h"
#include "transport/shm/shm_transport.h"
#ifdef HEADRACE_HAVE_UCX
#include "transport/nvlink/gpu_codec_probe.h"
#include "transport/ucx/names.h"
#endif

namespace headrace::service {
namespace {

// In flight on the lane between GPUs, per job, at least: launches are to follow each other.
constexpr std::uint64_t kGpuCreditBytes = std::uint64_t{256} << 20;

std::uint32_t LaneThreads(const Config& config) {
  if (config.lane_threads != 0) return static_cast<std::uint32_t>(config.lane_threads);
  return std::max(1U, std::thread::hardware_concurrency());
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

// The inboxes of the actors that live in event loops, which are built last.
struct LoopInboxes {
  std::unique_ptr<LoopInbox<RpcMessage>> rpc;
  std::unique_ptr<LoopInbox<PeersMessage>> peers;
  std::unique_ptr<LoopInbox<HttpMessage>> http;
};

Result<LoopInboxes> OpenInboxes() {
  auto rpc = LoopInbox<RpcMessage>::Create();
  if (!rpc) return rpc.error();
  auto peers = LoopInbox<PeersMessage>::Create();
  if (!peers) return peers.error();
  auto http = LoopInbox<HttpMessage>::Create();
  if (!http) return http.error();
  return LoopInboxes{.rpc = std::move(rpc).value(),
                     .peers = std::move(peers).value(),
                     .http = std::move(http).value()};
}

// What Run starts a lane's thread with.
struct ThreadOfLane {
  std::string name;
  ActorSet* actors = nullptr;
  Sleeper* sleeper = nullptr;
};

}  // namespace

// Members stand in build order: what a part refers to stands above it. Dispatch and watch own the
// memory of blocks and stand above every transport: it is unmapped after those are gone.
struct Daemon::Parts {
  Parts(const Config& config, std::shared_ptr<spdlog::logger> logger, LogSink& log_sink,
        Instance claimed, ipc::BoardFile board_file, LoopInboxes loop_inboxes,
        std::vector<std::unique_ptr<Sleeper>> thread_sleepers, GpuSet gpu_set,
        std::vector<Rail> rails)
      : log(std::move(logger)),
        gpus(std::move(gpu_set)),
        instance(std::move(claimed)),
        board(std::move(board_file)),
        drops(log_sink, board.layout().log),
        inboxes(std::move(loop_inboxes)),
        sleepers(std::move(thread_sleepers)),
        spin_ns(static_cast<TimeNs>(config.spin_us) * kMicrosecond),
        watch(*watch_sleeper(), *inboxes.rpc, *inboxes.peers, board.layout(), LogTo(log)),
        mapper(*mapping_sleeper(), *inboxes.rpc, board.layout(), gpus.gpus.get()),
        dispatch(*data_sleeper(), *data_sleeper(), *inboxes.rpc, *inboxes.peers, watch.inbox(),
                 mapper.inbox(), board.layout()),
        lane_waker(*lane_sleeper()),
        shm_transport(LaneThreads(config), lane_waker),
        shm_lane(0, "shm0", shm_transport, lane_waker, *lane_sleeper(), dispatch.inbox()) {
    std::vector<LanePort> ports{{.name = "shm0",
                                 .transport = std::string(shm_transport.capabilities().name),
                                 .threads = shm_transport.capabilities().threads,
                                 .credit_bytes = config.credit_bytes,
                                 .inbox = &shm_lane.inbox()}};
    if (gpus.gpus != nullptr) {
      AddGpuLane(config, ports);
      gpus.gpus->OnBroken(
          [this](const std::string& cause) { return inboxes.rpc->Send(GpuBroken{cause}); });
    }
    const bool crosses_nodes = !rails.empty();
    AddNodeLanes(config, std::move(rails), ports);
    for (const LanePort& port : ports) lane_names.push_back(port.name);
    dispatch.ConnectLanes(std::move(ports));
    mapper.ConnectDispatch(dispatch.inbox());
    dispatch.ReportLate(static_cast<TimeNs>(config.late_ms) * kMillisecond);
    if (config.interleave) dispatch.Interleave();
    dispatch.LimitPosts(config.operations_per_uid);
    dispatch.Verify(static_cast<std::uint32_t>(config.verify));
    if (crosses_nodes) dispatch.SetCodecCosts(transport::MeasureCodecs(), MeasureGpuCodecs());
  }

  // Lanes free what mapping has pinned for them, and into which GPUs may still be writing.
  ~Parts() {
#ifdef HEADRACE_HAVE_UCX
    for (const std::unique_ptr<NodeLane>& lane : node_lanes) {
      if (lane->rail.gpu_codec != nullptr) lane->rail.gpu_codec->Wait();
    }
#endif
    mapper.Release();
  }

  void LogRefusedReleases() const {
    const std::uint64_t refused = gpus.gpus ? gpus.gpus->driver().releases_failed() : 0;
    if (refused == 0) return;
    log->warn(
        "CUDA's driver refused {} releases of GPU memory, streams or mappings, as it does after a "
        "GPU failed; they were held until this process ended",
        refused);
  }

  void AddGpuLane(const Config& config, std::vector<LanePort>& ports) {
    gpu_lane = std::make_unique<GpuLane>(static_cast<std::uint8_t>(ports.size()), gpus, dispatch);
    ports.push_back({.name = gpus.lane_name,
                     .transport = std::string(gpus.transport->capabilities().name),
                     .threads = 1,
                     .credit_bytes = std::max(config.credit_bytes, kGpuCreditBytes),
                     .inbox = &gpu_lane->lane.inbox(),
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
      node_lanes.push_back(std::make_unique<NodeLane>(index, std::move(rail), *data_sleeper(),
                                                      dispatch, *inboxes.peers));
      NodeLane& added = *node_lanes.back();
      const transport::NetworkTransport& network = added.rail.network();
      if (added.rail.nccl) ++nccl_lanes;
      log->info("lane {} between nodes over {}", added.rail.name, network.WireNames());
      network_lanes.push_back(
          {.number = index, .address = network.address(), .inbox = &added.lane.inbox()});
      ports.push_back({.name = added.rail.name,
                       .transport = network.WireNames(),
                       .threads = 1,
                       .credit_bytes = config.network_credit_bytes,
                       .inbox = &added.from_dispatch,
                       .place = LanePlace::kBetweenNodes,
                       .measures_flow = network.capabilities().measures_flow,
                       .device_codecs = network.capabilities().device_codecs});
    }
    if (gpus.gpus == nullptr || node_lanes.empty()) return;
    log->info("{}", nccl_lanes == 0 ? node_lanes.front()->rail.wire->GpuPath()
                                    : fmt::format("GPU memory goes to other nodes {}",
                                                  DescribeGpuNetwork(nccl_lanes)));
    if (node_lanes.front()->rail.gpu_codec != nullptr)
      log->info("GPUs compress what they have for other nodes (gpu_codecs = on)");
#endif
  }

  // The lanes that have threads of their own, and who runs whom: dispatch the lanes between nodes,
  // and they dispatch. Lanes of NCCL are left out, whose calls may block.
  std::vector<ThreadOfLane> AddLanes(bool dedicated, std::deque<ActorSet>& sets, ActorSet& data) {
    std::vector<ThreadOfLane> threads;
    const auto add = [&](std::string name, Lane& lane, Sleeper& sleeper) -> ActorSet& {
      ActorSet& set = sets.emplace_back(std::vector<Actor*>{&lane}, sleeper);
      threads.push_back({std::move(name), &set, &sleeper});
      return set;
    };
    if (dedicated) add("hr-lane0", shm_lane, *lane_sleeper());
    if (gpu_lane != nullptr) add("hr-gpu0", gpu_lane->lane, *gpus.sleeper);
#ifdef HEADRACE_HAVE_UCX
    for (const std::unique_ptr<NodeLane>& node_lane : node_lanes) {
      const Rail& rail = node_lane->rail;
      ActorSet& set = add("hr-" + rail.name, node_lane->lane, *rail.sleeper);
      if (rail.nccl) continue;
      data.AddReceiver(node_lane->lane_wake, set);
      set.AddReceiver(node_lane->dispatch_wake, data);
    }
#endif
    return threads;
  }

  // What this service leaves out of sums that it makes as a server; null: it has no lanes.
  const transport::ServedResiduals* ServedResiduals() const {
#ifdef HEADRACE_HAVE_UCX
    if (!node_lanes.empty()) return node_lanes.front()->rail.residuals.get();
#endif
    return nullptr;
  }

  // Before the lanes' threads are there; empty: GPUs encode nothing.
  std::vector<CodecCost> MeasureGpuCodecs() const {
#ifdef HEADRACE_HAVE_UCX
    if (node_lanes.empty() || node_lanes.front()->rail.gpu_codec == nullptr) return {};
    auto costs = transport::MeasureGpuCodecs(*gpus.gpus, *node_lanes.front()->rail.gpu_codec);
    if (costs) return std::move(costs).value();
    log->warn("codecs could not be measured on GPU 0, and count as on the host: {}",
              costs.error().text());
#endif
    return {};
  }

  // Whoever can connect takes the service for one that has started, so clients come last.
  Status OpenLoops(const Config& config, const std::string& gpus_missing) {
    Result<std::unique_ptr<PeersThread>> with_peers = PeersThread::Start(
        PeerOptionsOf(config, nccl_lanes), {.inbox = *inboxes.peers,
                                            .rpc = *inboxes.rpc,
                                            .dispatch = dispatch.inbox(),
                                            .watch = watch.inbox(),
                                            .log = *log,
                                            .certificate = &board.layout().certificate,
                                            .peers = board.layout().peers,
                                            .served = board.layout().served,
                                            .served_residuals = ServedResiduals(),
                                            .network_lanes = network_lanes});
    if (!with_peers) return with_peers.error();
    peers = std::move(with_peers).value();
    if (!config.http_address.empty()) {
      Result<std::unique_ptr<HttpThread>> with_http = HttpThread::Start(
          config.http_address,
          {.inbox = *inboxes.http, .rpc = *inboxes.rpc, .board = board.layout(), .log = *log});
      if (!with_http) return with_http.error();
      http = std::move(with_http).value();
    }
    const MemoryFound memory = FindOwnMemory();
    if (config.memory_per_uid == kQuotaAuto) {
      log->info(
          "each uid but root and that of this service, {}, may hand over {} (memory_per_uid "
          "is auto)",
          ::geteuid(), DescribeDefaultMemory(memory));
    }
    Result<std::unique_ptr<Control>> with_clients = Control::Create(
        ControlOptionsOf(config, gpus_missing, !network_lanes.empty(), peers->port(), memory),
        {.inbox = *inboxes.rpc,
         .dispatch = dispatch.inbox(),
         .peers = *inboxes.peers,
         .watch = watch.inbox(),
         .mapping = mapper.inbox(),
         .board = board.layout().service,
         .log = *log,
         .lane_names = lane_names,
         .http = http == nullptr ? nullptr : inboxes.http.get(),
         .users = board.layout().users});
    if (!with_clients) return with_clients.error();
    rpc = std::move(with_clients).value();
    return {};
  }

  // Dispatch and the lane share the data thread unless the lane has a sleeper of its own.
  Sleeper* data_sleeper() { return sleepers[0].get(); }
  Sleeper* watch_sleeper() { return sleepers[1].get(); }
  Sleeper* mapping_sleeper() { return sleepers[2].get(); }
  Sleeper* lane_sleeper() { return sleepers.size() > 3 ? sleepers[3].get() : data_sleeper(); }

  std::shared_ptr<spdlog::logger> log;  // shared with main, which made it
  GpuSet gpus;                          // outlives all memory that is mapped for them
  Instance instance;
  ipc::BoardFile board;
  DropCount drops;
  LoopInboxes inboxes;
  std::vector<std::unique_ptr<Sleeper>> sleepers;
  TimeNs spin_ns;
  Watch watch;
  Mapper mapper;
  Dispatch dispatch;
  LaneWaker lane_waker;
  transport::ShmTransport shm_transport;
  Lane shm_lane;
  std::unique_ptr<GpuLane> gpu_lane;  // null without GPUs
#ifdef HEADRACE_HAVE_UCX
  std::vector<std::unique_ptr<NodeLane>> node_lanes;
#endif
  std::vector<NetworkLane> network_lanes;
  std::uint32_t nccl_lanes = 0;  // of these
  std::vector<std::string> lane_names;
  // The event loops: peers and http have threads from Create on; rpc has main, last in, first out.
  std::unique_ptr<PeersThread> peers;
  std::unique_ptr<HttpThread> http;  // null without an address
  std::unique_ptr<Control> rpc;
};

Result<std::unique_ptr<Daemon>> Daemon::Create(const Config& config,
                                               std::shared_ptr<spdlog::logger> log, LogSink& sink) {
  Result<Instance> instance = Instance::Claim(config.socket_path, config.board_path, "headraced");
  if (!instance) return instance.error();
  if (!instance->notice().empty()) log->warn("{}", instance->notice());
  Result<ipc::BoardFile> board =
      ipc::BoardFile::Create(config.board_path, static_cast<std::uint32_t>(config.board_mode));
  if (!board) return board.error();
  if (!board->notice().empty()) log->warn("{}", board->notice());
  Result<LoopInboxes> inboxes = OpenInboxes();
  if (!inboxes) return inboxes.error();
  std::vector<std::unique_ptr<Sleeper>> sleepers;
  for (int i = 0; i < (config.dedicated_lanes ? 4 : 3); ++i) {
    Result<std::unique_ptr<Sleeper>> sleeper = Sleeper::Create();
    if (!sleeper) return sleeper.error();
    sleepers.push_back(std::move(sleeper).value());
  }
  Result<Transports> transports = OpenTransports(config, *log);
  if (!transports) return transports.error();
  const std::string gpus_missing = transports->gpus.missing;
  auto parts = std::make_unique<Parts>(config, log, sink, std::move(instance).value(),
                                       std::move(board).value(), std::move(inboxes).value(),
                                       std::move(sleepers), std::move(transports->gpus),
                                       std::move(transports->rails));
  if (Status opened = parts->OpenLoops(config, gpus_missing); !opened) return opened.error();
  return std::unique_ptr<Daemon>(new Daemon(std::move(parts)));
}

namespace {

// What other nodes must know and believe of this one.
Status CheckMeeting(const Config& config) {
  const PeerOptions options = PeerOptionsOf(config, 0);
  if (Status status = CheckTlsFiles(SecurityOptionsOf(options)); !status) return status;
  if (config.role != Role::kServer) return {};
  const LeaderNames names{.node_name = options.node_name,
                          .address = options.address,
                          .port = 0,
                          .peers = options.peers};
  const Result<std::string> leader = names.At(options.rendezvous);
  return leader ? Status() : Status(leader.error());
}

// One that is taken while the service runs is that service's, as far as this can tell.
Status CheckPorts(const Config& config, bool runs) {
  for (const auto& [key, address] : {std::pair("node_address", &config.node_address),
                                     std::pair("http_address", &config.http_address)}) {
    if (address->empty()) continue;
    const Status status = CheckListenAt(key, *address);
    if (!status && !(runs && status.code() == Code::kBusy)) return status;
  }
  return {};
}

}  // namespace

Status Daemon::Check(const Config& config, std::shared_ptr<spdlog::logger> log) {
  const Result<bool> runs = Instance::Check(config.socket_path, config.board_path);
  if (!runs) return runs.error();
  if (Status status = CheckMeeting(config); !status) return status;
  if (const Result<Transports> opened = OpenTransports(config, *log); !opened) {
    return opened.error();
  }
  return CheckPorts(config, *runs);
}

Daemon::Daemon(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Daemon::~Daemon() = default;

int Daemon::Run(Supervisor supervisor) {
  const bool dedicated = parts_->lane_sleeper() != parts_->data_sleeper();
  ActorSet watch({&parts_->watch}, *parts_->watch_sleeper());
  ActorSet mapping({&parts_->mapper}, *parts_->mapping_sleeper());
  std::vector<Actor*> data_actors{&parts_->dispatch};
  if (!dedicated) data_actors.push_back(&parts_->shm_lane);
  ActorSet data(std::move(data_actors), *parts_->data_sleeper());
  std::deque<ActorSet> lanes;
  const std::vector<ThreadOfLane> lane_threads = parts_->AddLanes(dedicated, lanes, data);

  // Threads start when no set changes any more.
  std::deque<Runner> runners;
  runners.emplace_back("hr-watch", watch, *parts_->watch_sleeper(), 0);
  runners.emplace_back("hr-mapping", mapping, *parts_->mapping_sleeper(), 0);
  runners.emplace_back("hr-data", data, *parts_->data_sleeper(), parts_->spin_ns);
  for (const ThreadOfLane& lane : lane_threads) {
    runners.emplace_back(lane.name, *lane.actors, *lane.sleeper, parts_->spin_ns);
  }
  const int exit_code = parts_->rpc->Run(std::move(supervisor));
  parts_->LogRefusedReleases();
  // In reverse: who others send to ends after them, and watch logs what comes to the last.
  while (!runners.empty()) runners.pop_back();
  return exit_code;
}

}  // namespace headrace::service
