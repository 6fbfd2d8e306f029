#include "transport/ucx/ucx_wire.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

#include "ipc/base/check.h"
#include "transport/ucx/accepted.h"
#include "transport/ucx/names.h"
#include "transport/ucx/signals.h"

namespace headrace::transport {
namespace {

// Progress calls at the end, until UCX has let go of everything; each is short.
constexpr int kFarewellsMax = 1000;

}  // namespace

Result<std::unique_ptr<UcxWire>> UcxWire::Open(const UcxOptions& options) {
  std::unique_ptr<UcxWire> wire(new UcxWire);
  if (const Status built = wire->Build(options); !built) return built.error();
  return wire;
}

Status UcxWire::Build(const UcxOptions& options) {
  if (getrandom(&wire_id_, sizeof(wire_id_), 0) != sizeof(wire_id_)) {
    return SystemError("draw an id for the wire", errno);
  }
  RestoreSignalHandlers();
  rendezvous_bytes_ = options.rendezvous_bytes;
  Result<UcxConfig> config = MakeUcxConfig(options);
  if (!config) return config.error();
  settings_sum_ = SettingsSum(options);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucp_context_h context = nullptr;
  if (const ucs_status_t status = ucp_init(&params, config->get(), &context); status != UCS_OK) {
    return UcxError(fmt::format("start UCX on devices \"{}\" with transports \"{}\" (`ucx_info -d` "
                                "lists what there is)",
                                options.net_devices, options.transports),
                    status);
  }
  context_.reset(context);
  leave_at_end_ = options.leave_at_end;
  const std::set<std::string> resources = ResourcesOf(context);
  in_place_ = std::ranges::any_of(resources, [](const std::string& name) {
    return ReachesNodes(name) && !name.starts_with("tcp/");
  });
  if (in_place_) ++settings_sum_;  // the two kinds do not understand each other
  if (Status built = BuildEngine(); !built) return built;
  return ReadAddress();
}

Status UcxWire::BuildEngine() {
  ucp_datatype_t pieces = 0;
  if (const ucs_status_t status = ucp_dt_create_generic(&PieceOps(), this, &pieces);
      status != UCS_OK) {
    return UcxError("describe the memory of messages to UCX", status);
  }
  pieces_.reset(pieces);
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  const std::set<int> others = TcpSockets(SocketKind::kListening);
  ucp_worker_h engine = nullptr;
  if (const ucs_status_t status = ucp_worker_create(context_.get(), &params, &engine);
      status != UCS_OK) {
    return UcxError("start UCX's engine", status);
  }
  engine_.reset(engine);
  std::set<int> listening = TcpSockets(SocketKind::kListening);
  std::erase_if(listening, [&others](int fd) { return others.contains(fd); });
  KeepAcceptedAlive(listening);
  KeepQueuesShort(listening);
  if (const ucs_status_t status = ucp_worker_get_efd(engine, &event_fd_); status != UCS_OK) {
    return UcxError("ask UCX for its descriptor to sleep on", status);
  }
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessageId;
  handler.cb = OnMessage;
  handler.arg = this;
  if (const ucs_status_t status = ucp_worker_set_am_recv_handler(engine, &handler);
      status != UCS_OK) {
    return UcxError("listen for UCX's messages", status);
  }
  return {};
}

Status UcxWire::ReadAddress() {
  ucp_address_t* bytes = nullptr;
  std::size_t size = 0;
  const ucs_status_t status = ucp_worker_get_address(engine_.get(), &bytes, &size);
  if (status != UCS_OK) return UcxError("ask UCX for its address", status);
  address_ = EncodeAddress(
      {wire_id_, settings_sum_, std::string(reinterpret_cast<const char*>(bytes), size)});
  ucp_worker_release_address(engine_.get(), bytes);
  if (size > kUcxAddressSizeMax) {
    return Error(Code::kExhausted, fmt::format("UCX's address has {} bytes, {} are the most: name "
                                               "fewer devices",
                                               size, kUcxAddressSizeMax));
  }
  return {};
}

// An engine that is left to the process's end is left as it is. Nobody calls progress any more, so
// nothing calls back into this wire; and endpoints that were closed in the midst of a handshake
// could end other processes (README).
//
// UCX aborts when an engine goes while it still works on a receive, so everything is ended before.
UcxWire::~UcxWire() {
  if (!engine_) return;
  if (leave_at_end_) {
    [[maybe_unused]] const ucp_worker_h engine = engine_.release();
    [[maybe_unused]] const ucp_datatype_t pieces = pieces_.release();
    [[maybe_unused]] const ucp_context_h context = context_.release();
    return;
  }
  arrivals_.ForEach([this](std::uint32_t, const Arrival& arrival) {
    if (arrival.held) ucp_am_data_release(engine_.get(), arrival.bytes);
  });
  std::set<ucp_ep_h> endpoints;
  peers_.ForEach(
      [&endpoints](std::uint32_t, const Peer& peer) { endpoints.insert(peer.endpoint); });
  operations_.ForEach([&endpoints](std::uint32_t, Operation& operation) {
    operation.reported = true;
    if (operation.source != nullptr) endpoints.insert(operation.source);
  });
  for (ucp_ep_h endpoint : endpoints) CloseEndpoint(endpoint);
  for (int i = 0; i < kFarewellsMax; ++i) {
    if (ucp_worker_progress(engine_.get()) == 0 && operations_.taken_count() == 0) break;
  }
}

std::string UcxWire::Names() const {
  std::set<std::string> names;
  peers_.ForEach(
      [&names](std::uint32_t, const Peer& peer) { names.merge(LanesOf(peer.endpoint)); });
  if (names.empty()) names = ResourcesOf(context_.get());
  std::erase_if(names, [](const std::string& name) { return !ReachesNodes(name); });
  return fmt::format("{}", fmt::join(names, ","));
}

std::string UcxWire::GpuPath() const { return GpuPathText(TakesCudaMemory(context_.get())); }

Result<std::span<std::byte>> UcxWire::AllocateStaging(std::size_t size) {
  if (stagings_.size() == kStagingsMax) {
    return Error(Code::kExhausted, fmt::format("the wire lent {} pieces of memory, more than it "
                                               "may",
                                               stagings_.size()));
  }
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
  params.length = size;
  params.flags = UCP_MEM_MAP_ALLOCATE;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  ucp_mem_h mapped = nullptr;
  if (const ucs_status_t status = ucp_mem_map(context_.get(), &params, &mapped); status != UCS_OK) {
    return UcxError(fmt::format("get {} bytes of memory from UCX", size), status);
  }
  UcxMemory memory({context_.get(), mapped});
  ucp_mem_attr_t attributes{};
  attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
  const ucs_status_t status = ucp_mem_query(mapped, &attributes);
  if (status != UCS_OK) return UcxError("ask UCX where its memory lies", status);
  const std::span<std::byte> bytes(static_cast<std::byte*>(attributes.address), size);
  stagings_.push_back({std::move(memory), bytes});
  HR_CHECK(stagings_.size() <= kStagingsMax, stagings_.size());
  return bytes;
}

void UcxWire::FreeStaging(std::span<std::byte> memory) {
  const auto found = std::ranges::find(stagings_, memory.data(),
                                       [](const Staging& staging) { return staging.bytes.data(); });
  HR_CHECK(found != stagings_.end(), memory.size());
  stagings_.erase(found);
}

bool UcxWire::Progress(WireEvents& events) {
  HR_CHECK(events_ == nullptr);
  events_ = &events;
  const unsigned moved = ucp_worker_progress(engine_.get());
  ForgetFailedPeers();
  const bool delivered = Deliver(events);
  events_ = nullptr;
  return moved != 0 || delivered;
}

bool UcxWire::Deliver(WireEvents& events) {
  // What the calls below add is reported next time: one call of Progress is bounded.
  HR_CHECK(reporting_.empty(), reporting_.size());
  std::swap(ended_, reporting_);
  for (const End& end : reporting_) {
    switch (end.kind) {
      case EndKind::kSent:
        events.Sent(end.token, end.code);
        break;
      case EndKind::kReceived:
        events.Received(end.token, end.code);
        break;
      case EndKind::kLinkFailed:
        if (const Link* link = links_.Find(end.link)) events.LinkFailed(end.link, CauseOf(*link));
        break;
    }
  }
  const bool any = !reporting_.empty();
  reporting_.clear();
  return any;
}

bool UcxWire::PrepareToSleep() {
  if (!ended_.empty() || !failures_.empty()) return false;
  // Busy: something came since the last Progress.
  return ucp_worker_arm(engine_.get()) == UCS_OK;
}

}  // namespace headrace::transport
