#include "transport/ucx/ucx_wire.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "ipc/base/check.h"
#include "ipc/base/copy.h"
#include "transport/ucx/accepted.h"
#include "transport/ucx/names.h"
#include "transport/ucx/signals.h"

namespace headrace::transport {
namespace {

// Progress calls at the end, until UCX has let go of everything; each is short.
constexpr int kFarewellsMax = 1000;

// What follows the bytes of a message that were all packed while they were the wire's.
constexpr std::uint64_t kWhole = 0x656c6f6877;  // "whole"

// Copies what [offset, offset + size) of a message has in common with the part of it that begins at
// `part_offset` and lies at `part`; `copy` gets the place in the part, the place in the piece, and
// the size.
template <typename Copy>
void CopyCommon(std::size_t offset, std::size_t size, std::size_t part_offset,
                std::size_t part_size, Copy copy) {
  const std::size_t first = std::max(offset, part_offset);
  const std::size_t last = std::min(offset + size, part_offset + part_size);
  if (first < last) copy(first - part_offset, first - offset, last - first);
}

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
  peers_.SetUnacknowledged(options.unacknowledged_ms);
  const std::set<std::string> resources = ResourcesOf(context);
  in_place_ = std::ranges::any_of(resources, [](const std::string& name) {
    return ReachesNodes(name) && !name.starts_with("tcp/");
  });
  if (in_place_) ++settings_sum_;  // the two kinds do not understand each other
  if (Status built = BuildEngine(options); !built) return built;
  return ReadAddress();
}

Status UcxWire::BuildEngine(const UcxOptions& options) {
  ucp_datatype_t pieces = 0;
  if (const ucs_status_t status = ucp_dt_create_generic(&PieceOps(), this, &pieces);
      status != UCS_OK) {
    return UcxError("describe the memory of messages to UCX", status);
  }
  pieces_.reset(pieces);
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  // Another thread of the service may run the lane while its own sleeps.
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
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
  FailUnacknowledged(listening, options.unacknowledged_ms);
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
  HR_CHECK(events_ == nullptr, arrivals_.taken_count());  // it is not in Progress
  if (leave_at_end_) {
    [[maybe_unused]] const ucp_worker_h engine = engine_.release();
    [[maybe_unused]] const ucp_datatype_t pieces = pieces_.release();
    [[maybe_unused]] const ucp_context_h context = context_.release();
    return;
  }
  arrivals_.ForEach([this](std::uint32_t, const Arrival& arrival) {
    if (arrival.held) ucp_am_data_release(engine_.get(), arrival.bytes);
  });
  std::set<ucp_ep_h> endpoints = peers_.Endpoints();
  open_messages_.ForEach([&endpoints](std::uint32_t, OpenMessage& message) {
    message.reported = true;
    if (message.source != nullptr) endpoints.insert(message.source);
  });
  for (ucp_ep_h endpoint : endpoints) CloseEndpoint(endpoint);
  for (int i = 0; i < kFarewellsMax; ++i) {
    if (ucp_worker_progress(engine_.get()) == 0 && open_messages_.taken_count() == 0) break;
  }
}

std::string UcxWire::Names() const {
  std::set<std::string> names;
  for (ucp_ep_h endpoint : peers_.Endpoints()) names.merge(LanesOf(endpoint));
  if (names.empty()) names = ResourcesOf(context_.get());
  std::erase_if(names, [](const std::string& name) { return !ReachesNodes(name); });
  return fmt::format("{}", fmt::join(names, ","));
}

std::string UcxWire::GpuPath() const { return GpuPathText(SupportsCudaMemory(context_.get())); }

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

Result<LinkId> UcxWire::Connect(const std::string& address, std::uint64_t key,
                                std::uint16_t /*member*/) {
  const Result<WireAddress> decoded = DecodeAddress(address);
  if (!decoded) return decoded.error();
  if (decoded->settings_sum != settings_sum_) {
    return Error(Code::kUnavailable,
                 "the other node sets UCX differently, and the two would misread each other: give "
                 "their lanes the same UCX settings, and both nodes the same release");
  }
  const auto [peer, status] = peers_.Connect(engine_.get(), *decoded);
  if (status != UCS_OK) {
    return Error(Code::kUnavailable,
                 fmt::format("connect over {}: UCX says \"{}\"; the two nodes need a network in "
                             "common among their lanes' net_devices",
                             Names(), ucs_status_string(status)));
  }
  const LinkId id = links_.Acquire();
  links_.At(id) = {.peer = peer, .peer_wire_id = decoded->wire_id, .key = key};
  return id;
}

void UcxWire::Close(LinkId id) {
  const Link* link = links_.Find(id);
  HR_CHECK(link != nullptr, id);
  EndMessages(id, *link, Code::kCancelled);
  links_.Release(id);
}

void UcxWire::ForgetFailedPeers() {
  for (const UcxPeers::Failure& failure : peers_.DrainFailures()) {
    links_.ForEach([&](LinkId id, Link& link) {
      if (link.peer != failure.peer || link.failure != UCS_OK) return;
      link.failure = failure.status;
      EndMessages(id, link, Code::kPeerLost);
      ended_.push_back({EndKind::kLinkFailed, Code::kPeerLost, id, 0});
    });
    peers_.Forget(failure.peer);
  }
}

// A message does not tell its link, but its sender and its group's key.
bool UcxWire::BelongsTo(const OpenMessage& message, LinkId id, const Link& link) {
  if (message.sends) return message.link == id;
  return message.peer_wire_id == link.peer_wire_id && message.key == link.key;
}

void UcxWire::EndMessages(LinkId id, const Link& link, Code code) {
  open_messages_.ForEach([&](std::uint32_t, OpenMessage& message) {
    if (message.given_up != Code::kOk || !BelongsTo(message, id, link)) return;
    message.given_up = code;
    if (in_place_) return;  // the device may be at work: the end is reported when UCX reports it
    message.reported = true;
    ended_.push_back(
        {message.sends ? EndKind::kSent : EndKind::kReceived, code, message.link, message.token});
  });
}

std::string UcxWire::CauseOf(const Link& link) const {
  return fmt::format(
      "UCX says \"{}\": the service there ended, restarted or cannot be reached; its log and the "
      "network between the two tell which",
      ucs_status_string(link.failure));
}

UcxWire::OpenMessage& UcxWire::NewMessage(bool sends, std::uint64_t token) {
  const std::uint32_t id = open_messages_.Acquire();
  OpenMessage& message = open_messages_.At(id);
  message = {.wire = this, .id = id, .sends = sends, .token = token};
  return message;
}

void UcxWire::Send(LinkId link_id, const MessageHeader& header, const std::byte* bytes,
                   std::size_t size, std::uint64_t token) {
  const Link* link = links_.Find(link_id);
  HR_CHECK(link != nullptr, link_id);
  HR_CHECK(header.key == link->key, link_id, header.key);
  HR_CHECK(bytes != nullptr || size == 0, link_id, size);
  if (link->failure != UCS_OK) {
    ended_.push_back({EndKind::kSent, Code::kPeerLost, link_id, token});
    return;
  }
  OpenMessage& message = NewMessage(true, token);
  message.link = link_id;
  message.envelope = {wire_id_, header};
  ucp_request_param_t param{};
  message.memory = const_cast<std::byte*>(bytes);
  message.size = size;
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.flags =
      IsEager(size) ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV | UCP_AM_SEND_FLAG_REPLY;
  param.cb.send = OnSent;
  param.user_data = &message;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  const void* source = bytes;
  if (!in_place_) {
    size += sizeof(kWhole);
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
    param.datatype = pieces_.get();
    source = &message;
  }
  void* request = ucp_am_send_nbx(peers_.EndpointOf(link->peer), kMessageId, &message.envelope,
                                  sizeof(Envelope), source, size, &param);
  if (!UCS_PTR_IS_PTR(request)) EndMessage(message, UCS_PTR_RAW_STATUS(request));
}

void UcxWire::OnSent(void* request, ucs_status_t status, void* argument) {
  OpenMessage& message = *static_cast<OpenMessage*>(argument);
  message.wire->EndMessage(message, status);
  ucp_request_free(request);
}

void UcxWire::OnReceived(void* request, ucs_status_t status, std::size_t, void* argument) {
  OpenMessage& message = *static_cast<OpenMessage*>(argument);
  message.wire->EndMessage(message, status);
  ucp_request_free(request);
}

void UcxWire::EndMessage(OpenMessage& message, ucs_status_t status) {
  HR_CHECK(&open_messages_.At(message.id) == &message, message.id);
  if (!message.reported) {
    Code code = message.given_up != Code::kOk ? message.given_up : CodeOf(status);
    // UCX cancels what it cannot go on with; nobody here asked for that.
    if (code == Code::kCancelled && message.given_up == Code::kOk) code = Code::kPeerLost;
    if (code == Code::kOk && !message.sends && !in_place_ && message.trailer != kWhole) {
      code = Code::kPeerLost;  // the sender gave it up
    }
    ended_.push_back(
        {message.sends ? EndKind::kSent : EndKind::kReceived, code, message.link, message.token});
  }
  open_messages_.Release(message.id);
}

ucs_status_t UcxWire::OnMessage(void* argument, const void* header, std::size_t header_size,
                                void* bytes, std::size_t size, const ucp_am_recv_param_t* param) {
  UcxWire& wire = *static_cast<UcxWire*>(argument);
  // The end of the wire's life, or nothing that a wire sends: UCX forgets it and tells a sender
  // that waits.
  if (wire.events_ == nullptr || header_size != sizeof(Envelope)) {
    ++wire.dropped_count_;
    return UCS_OK;
  }
  Envelope envelope;
  std::memcpy(&envelope, header, sizeof(envelope));
  if (wire.in_place_) return wire.Announce(envelope, bytes, size, *param);
  if (size < sizeof(kWhole)) {
    ++wire.dropped_count_;
    return UCS_OK;
  }
  size -= sizeof(kWhole);
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0) {
    // Given up by its sender before all of it was packed: as if it had never been sent.
    std::uint64_t trailer = 0;
    std::memcpy(&trailer, static_cast<const std::byte*>(bytes) + size, sizeof(trailer));
    if (trailer != kWhole) return UCS_OK;
  }
  return wire.Announce(envelope, bytes, size, *param);
}

// Returns UCS_INPROGRESS when UCX must keep the bytes.
ucs_status_t UcxWire::Announce(const Envelope& envelope, void* bytes, std::size_t size,
                               const ucp_am_recv_param_t& param) {
  const std::uint32_t id = arrivals_.Acquire();
  Arrival& arrival = arrivals_.At(id);
  arrival.peer_wire_id = envelope.wire_id;
  arrival.key = envelope.header.key;
  arrival.size = size;
  arrival.bytes = bytes;
  arrival.rendezvous = (param.recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  arrival.source =
      (param.recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0 ? param.reply_ep : nullptr;
  arrival.held = false;
  fresh_ = id;
  fate_ = Fate::kUndecided;
  HR_CHECK(id != 0 && events_ != nullptr, id);
  events_->Announced(envelope.header, size, id);
  fresh_ = 0;
  if (fate_ != Fate::kUndecided) return fate_ == Fate::kStarted ? UCS_INPROGRESS : UCS_OK;
  if (arrival.rendezvous || (param.recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) != 0) {
    arrival.held = true;
    return UCS_INPROGRESS;
  }
  const auto* first = static_cast<const std::byte*>(bytes);
  arrival.copy.assign(first, first + size);
  arrival.bytes = arrival.copy.data();
  return UCS_OK;
}

UcxWire::Arrival& UcxWire::ArrivalOf(ArrivalId id) {
  Arrival* arrival = id <= UINT32_MAX ? arrivals_.Find(static_cast<std::uint32_t>(id)) : nullptr;
  HR_CHECK(arrival != nullptr, id);
  return *arrival;
}

void UcxWire::Accept(ArrivalId id, std::byte* memory, std::uint64_t token, std::size_t whole) {
  Arrival& arrival = ArrivalOf(id);
  if (arrival.rendezvous) {
    if (id == fresh_) fate_ = Fate::kStarted;
    HR_CHECK(memory != nullptr || arrival.size == 0, id, arrival.size);
    StartReceive(arrival, memory, token);
    arrivals_.Release(static_cast<std::uint32_t>(id));
    return;
  }
  HR_CHECK(memory != nullptr || arrival.size == 0, id, arrival.size);
  CopyPartOf(whole, memory, static_cast<const std::byte*>(arrival.bytes), arrival.size);
  ended_.push_back({EndKind::kReceived, Code::kOk, 0, token});
  Drop(id);
}

void UcxWire::Drop(ArrivalId id) {
  const Arrival& arrival = ArrivalOf(id);
  // UCX answers the sender of a rendezvous, whose Send then ends as if it had been received.
  if (arrival.held) ucp_am_data_release(engine_.get(), arrival.bytes);
  if (id == fresh_) fate_ = Fate::kDone;
  arrivals_.Release(static_cast<std::uint32_t>(id));
}

void UcxWire::StartReceive(const Arrival& arrival, std::byte* memory, std::uint64_t token) {
  OpenMessage& message = NewMessage(false, token);
  message.peer_wire_id = arrival.peer_wire_id;
  message.key = arrival.key;
  message.memory = memory;
  message.size = arrival.size;
  message.source = arrival.source;
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.cb.recv_am = OnReceived;
  param.user_data = &message;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  void* target = memory;
  if (!in_place_) {
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
    param.datatype = pieces_.get();
    target = &message;
    message.trailer = 0;
  }
  void* request = ucp_am_recv_data_nbx(engine_.get(), arrival.bytes, target, arrival.size, &param);
  if (!UCS_PTR_IS_PTR(request)) EndMessage(message, UCS_PTR_RAW_STATUS(request));
}

// How UCX gets at the memory of messages: piece by piece, as the socket takes and gives.
const ucp_generic_dt_ops_t& UcxWire::PieceOps() {
  static const ucp_generic_dt_ops_t ops = {
      .start_pack = [](void*, const void* message,
                       std::size_t) { return const_cast<void*>(message); },
      .start_unpack = [](void*, void* message, std::size_t) { return message; },
      .packed_size =
          [](void* message) { return static_cast<OpenMessage*>(message)->size + sizeof(kWhole); },
      .pack = PackPiece,
      .unpack = UnpackPiece,
      .finish = [](void*) {},
  };
  return ops;
}

std::size_t UcxWire::PackPiece(void* argument, std::size_t offset, void* bytes,
                               std::size_t size_max) {
  const OpenMessage& message = *static_cast<const OpenMessage*>(argument);
  HR_CHECK(offset <= message.size + sizeof(kWhole), message.id, offset, message.size);
  const std::size_t size = std::min(size_max, message.size + sizeof(kWhole) - offset);
  auto* piece = static_cast<std::byte*>(bytes);
  if (message.reported) {
    // The announced size must be filled, and the memory is no longer ours.
    std::memset(piece, 0, size);
    return size;
  }
  CopyCommon(offset, size, 0, message.size, [&](std::size_t from, std::size_t to, std::size_t n) {
    std::memcpy(piece + to, message.memory + from, n);
  });
  CopyCommon(offset, size, message.size, sizeof(kWhole),
             [&](std::size_t from, std::size_t to, std::size_t n) {
               std::memcpy(piece + to, reinterpret_cast<const std::byte*>(&kWhole) + from, n);
             });
  return size;
}

ucs_status_t UcxWire::UnpackPiece(void* argument, std::size_t offset, const void* bytes,
                                  std::size_t size) {
  OpenMessage& message = *static_cast<OpenMessage*>(argument);
  const std::size_t size_max = message.size + sizeof(kWhole);
  if (offset > size_max || size > size_max - offset) return UCS_ERR_MESSAGE_TRUNCATED;
  if (message.reported) return UCS_OK;
  const auto* piece = static_cast<const std::byte*>(bytes);
  CopyCommon(offset, size, 0, message.size, [&](std::size_t to, std::size_t from, std::size_t n) {
    std::memcpy(message.memory + to, piece + from, n);
  });
  CopyCommon(offset, size, message.size, sizeof(kWhole),
             [&](std::size_t to, std::size_t from, std::size_t n) {
               std::memcpy(reinterpret_cast<std::byte*>(&message.trailer) + to, piece + from, n);
             });
  return UCS_OK;
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
  if (!ended_.empty() || peers_.has_failures()) return false;
  // Busy: something came since the last Progress.
  return ucp_worker_arm(engine_.get()) == UCS_OK;
}

}  // namespace headrace::transport
