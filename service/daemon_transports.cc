#include "service/daemon_transports.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "service/cluster/agreement.h"
#include "service/config/config_address.h"
#include "service/daemon_options.h"
#include "service/dispatch/job/block.h"
#include "transport/nccl/nccl_transport.h"
#include "transport/nvlink/gpu_codec.h"
#include "transport/nvlink/nvlink_transport.h"
#ifdef HEADRACE_HAVE_UCX
#include "transport/ucx/devices.h"
#include "transport/ucx/names.h"
#include "transport/ucx/signals.h"
#endif

namespace headrace::service {
namespace {

// Other nodes are met where an address or the role says so.
bool SpansNodes(const Config& config) {
  return !config.node_address.empty() || config.role == Role::kServer;
}

transport::NcclOptions NcclOptionsOf(const Config& config) {
  transport::NcclOptions options{.ctas_max = static_cast<std::uint32_t>(config.gpu_ctas)};
  if (!config.nccl_library.empty()) options.library = config.nccl_library;
  return options;
}

Result<std::unique_ptr<transport::Transport>> OpenGpuTransport(const Config& config,
                                                               const transport::Gpus& gpus,
                                                               spdlog::logger& log) {
  if (config.gpu_lane == GpuLaneKind::kNccl) {
    transport::NcclOptions options = NcclOptionsOf(config);
    options.on_kernels = [&log](const std::string& reason) {
      log.info("gpu_lane is nccl, and what NCCL does not take goes by kernels, as now: {}", reason);
    };
    auto nccl = transport::NcclTransport::Open(gpus, options);
    if (!nccl) return nccl.error();
    return std::unique_ptr<transport::Transport>(std::move(nccl).value());
  }
  auto nvlink = transport::NvlinkTransport::Open(
      gpus, {.ctas = static_cast<std::uint32_t>(config.gpu_ctas),
             .multicast = config.gpu_multicast == GpuMulticast::kOn,
             .on_no_multicast = [&log](const std::string& reason) {
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
  set.lane_name = fmt::format("{}0", Name(config.gpu_lane));
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
  if (config.gpu == GpuUse::kOff) {
    return GpuSet{.missing = "its configuration has gpu = off: set gpu = auto and start it again",
                  .gpus = nullptr,
                  .lane_name = {},
                  .transport = nullptr,
                  .sleeper = nullptr};
  }
  Result<GpuSet> set = OpenGpuSet(config, log);
  if (set) {
    for (const transport::CudaDevice& gpu : set->gpus->devices()) {
      if (Status fits = CheckGpuFits(config, gpu); !fits) return fits.error();
      log.info("{}", GpuText(gpu));
    }
    return set;
  }
  if (config.gpu == GpuUse::kOn) return set.error().Within("use GPUs (gpu = on)");
  log.info("no GPUs are used: {}", set.error().text());
  GpuSet none;
  none.missing = set.error().text();
  return none;
}

#ifdef HEADRACE_HAVE_UCX
// What encodes on GPUs, for one lane; null: the host does.
std::shared_ptr<transport::DeviceCodec> OpenGpuCodec(const Config& config, const GpuSet& gpus,
                                                     spdlog::logger& log) {
  const bool wanted =
      config.gpu_network == GpuNetwork::kStaged && config.gpu_codecs == GpuCodecs::kOn;
  if (gpus.gpus == nullptr || !wanted) return nullptr;
  auto codec = transport::GpuCodec::Open(*gpus.gpus, static_cast<std::uint32_t>(config.gpu_ctas));
  if (codec) return std::shared_ptr<transport::DeviceCodec>(std::move(codec).value());
  log.warn("what GPUs have for other nodes is compressed on the host: {}", codec.error().text());
  return nullptr;
}

// `devices`: the lane's own, then those that stand in for it.
Result<Rail> OpenRail(const Config& config, std::size_t index,
                      const std::vector<std::string>& devices,
                      const std::shared_ptr<transport::ServedResiduals>& residuals,
                      std::shared_ptr<transport::DeviceCodec> gpu_codec) {
  Rail rail;
  rail.name = fmt::format("ucx{}", index);
  transport::UcxOptions options;
  options.leave_at_end = true;
  if (!config.network_transports.empty()) options.transports = config.network_transports;
  auto wire = transport::UcxRails::Open(options, devices);
  if (!wire) return wire.error().Within(fmt::format("open lane {}", rail.name));
  rail.wire = std::move(wire).value();
  Result<std::unique_ptr<Sleeper>> sleeper = Sleeper::Create();
  if (!sleeper) return sleeper.error();
  rail.sleeper = std::move(sleeper).value();
  for (const int fd : rail.wire->event_fds()) {
    if (Status status = rail.sleeper->WatchLevel(fd); !status) {
      return status.error().Within(fmt::format("listen to lane {}", rail.name));
    }
  }
  rail.gpu_codec = std::move(gpu_codec);
  rail.residuals = residuals;
  transport::ExchangeOptions exchange = rail.wire->OptionsOf(rail.name);
  exchange.device_codec = rail.gpu_codec;
  rail.exchange = std::make_unique<transport::Exchange>(rail.wire->wire(), exchange, residuals);
  return rail;
}

// Lanes between nodes that are a GPU's own: number g is that of GPU g. The name of what is wrong,
// and the remedy, where there cannot be as many.
Result<std::size_t> CountNcclLanes(const Config& config, const GpuSet& gpus) {
  if (config.gpu_network != GpuNetwork::kNccl) return std::size_t{0};
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

// The devices of node_address, if that is an address: lanes listen only where the service does.
// All devices if it is every interface, of none, or missing (role = server needs none).
std::string DevicesOfNode(const Config& config) {
  if (config.node_address.empty()) return "";
  const Result<HostPort> address = ParseListenAddress(config.node_address);
  return address ? transport::DevicesAt(address->host) : "";
}

// One for each device, and for GPUs beyond that, with lanes of their own, again over the same ones.
Result<std::vector<Rail>> OpenRails(const Config& config, const GpuSet& gpus, spdlog::logger& log) {
  std::vector<Rail> rails;
  if (!SpansNodes(config)) return rails;
  transport::RestoreSignalHandlers();
  Result<std::vector<std::string>> devices = ParseRails(config.rails);
  if (!devices) return devices.error();
  if (devices->empty()) devices->push_back(DevicesOfNode(config));
  const Result<std::size_t> nccl_lanes = CountNcclLanes(config, gpus);
  if (!nccl_lanes) return nccl_lanes.error();
  const auto residuals =
      std::make_shared<transport::ServedResiduals>(ServedResidualsMax(config, FindOwnMemory()));
  for (std::size_t i = 0; i < std::max(devices->size(), *nccl_lanes); ++i) {
    const bool codes = i == 0 || rails.front().gpu_codec != nullptr;
    Result<Rail> rail = OpenRail(config, i, RailsOfLane(*devices, i), residuals,
                                 codes ? OpenGpuCodec(config, gpus, log) : nullptr);
    if (!rail) return rail.error();
    if (i < *nccl_lanes) {
      if (Status opened = OpenNccl(config, *gpus.gpus, i, *rail); !opened) return opened.error();
    }
    rails.push_back(std::move(rail).value());
  }
  return rails;
}

#else
Result<std::vector<Rail>> OpenRails(const Config& config, const GpuSet& /*gpus*/,
                                    spdlog::logger& /*log*/) {
  if (!SpansNodes(config)) return std::vector<Rail>{};
  return Error(Code::kUnavailable,
               "node_address or role asks for other nodes, and this headraced was built without "
               "UCX: install libucx-dev and build again");
}
#endif

}  // namespace

Result<Transports> OpenTransports(const Config& config, spdlog::logger& log) {
  Result<GpuSet> gpus = FindGpus(config, log);
  if (!gpus) return gpus.error();
  Result<std::vector<Rail>> rails = OpenRails(config, *gpus, log);
  if (!rails) return rails.error();
  return Transports{.gpus = std::move(gpus).value(), .rails = std::move(rails).value()};
}

}  // namespace headrace::service
