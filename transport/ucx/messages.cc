// The wire's messages: how they are sent, announced and received.
#include <algorithm>
#include <cstring>

#include "transport/ucx/ucx_wire.h"

namespace headrace::transport {

UcxWire::Operation& UcxWire::NewOperation(bool sends, std::uint64_t token) {
  const std::uint32_t id = operations_.Take();
  Operation& operation = *operations_.Find(id);
  operation = {.wire = this, .id = id, .sends = sends, .token = token};
  return operation;
}

void UcxWire::Send(LinkId link_id, const MessageHeader& header, const std::byte* bytes,
                   std::size_t size, std::uint64_t token) {
  Link* link = links_.Find(link_id);
  HR_CHECK(link != nullptr, link_id);
  link->key = header.key;
  if (link->failure != UCS_OK) {
    ended_.push_back({EndKind::kSent, Code::kPeerLost, link_id, token});
    return;
  }
  Operation& operation = NewOperation(true, token);
  operation.link = link_id;
  operation.envelope = {wire_id_, header};
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.flags = size >= rendezvous_bytes_ ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = OnSent;
  param.user_data = &operation;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  void* request = ucp_am_send_nbx(link->endpoint, kMessageId, &operation.envelope, sizeof(Envelope),
                                  bytes, size, &param);
  if (!UCS_PTR_IS_PTR(request)) EndOperation(operation, UCS_PTR_RAW_STATUS(request));
}

void UcxWire::OnSent(void* request, ucs_status_t status, void* argument) {
  Operation& operation = *static_cast<Operation*>(argument);
  operation.wire->EndOperation(operation, status);
  ucp_request_free(request);
}

void UcxWire::OnReceived(void* request, ucs_status_t status, std::size_t, void* argument) {
  Operation& operation = *static_cast<Operation*>(argument);
  operation.wire->EndOperation(operation, status);
  ucp_request_free(request);
}

void UcxWire::EndOperation(Operation& operation, ucs_status_t status) {
  Code code = CodeOf(status);
  if (operation.sends) {
    const Link* link = links_.Find(operation.link);
    if (code != Code::kOk) code = link == nullptr ? Code::kCancelled : Code::kPeerLost;
    ended_.push_back({EndKind::kSent, code, operation.link, operation.token});
  } else if (!operation.told) {
    if (operation.given_up != Code::kOk) code = operation.given_up;
    // UCX cancels what it cannot go on with; nobody here asked for that.
    if (code == Code::kCancelled && operation.given_up == Code::kOk) code = Code::kPeerLost;
    ended_.push_back({EndKind::kReceived, code, 0, operation.token});
  }
  operations_.Give(operation.id);
}

ucs_status_t UcxWire::OnMessage(void* argument, const void* header, std::size_t header_size,
                                void* bytes, std::size_t size, const ucp_am_recv_param_t* param) {
  UcxWire& wire = *static_cast<UcxWire*>(argument);
  // The end of the wire's life, or nothing that a wire sends: UCX forgets it and tells a sender
  // that waits.
  if (wire.events_ == nullptr || header_size != sizeof(Envelope)) {
    ++wire.malformed_count_;
    return UCS_OK;
  }
  Envelope envelope;
  std::memcpy(&envelope, header, sizeof(envelope));
  return wire.Announce(envelope, bytes, size, param->recv_attr);
}

// Returns UCS_INPROGRESS when UCX must keep the bytes.
ucs_status_t UcxWire::Announce(const Envelope& envelope, void* bytes, std::size_t size,
                               std::uint64_t attributes) {
  const std::uint32_t id = arrivals_.Take();
  Arrival& arrival = *arrivals_.Find(id);
  arrival.peer_id = envelope.wire_id;
  arrival.key = envelope.header.key;
  arrival.size = size;
  arrival.bytes = bytes;
  arrival.rendezvous = (attributes & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  arrival.held = false;
  fresh_ = id;
  fate_ = Fate::kUndecided;
  events_->Announced(envelope.header, size, id);
  fresh_ = 0;
  if (fate_ != Fate::kUndecided) return fate_ == Fate::kStarted ? UCS_INPROGRESS : UCS_OK;
  if (arrival.rendezvous || (attributes & UCP_AM_RECV_ATTR_FLAG_DATA) != 0) {
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

void UcxWire::Accept(ArrivalId id, std::byte* memory, std::uint64_t token) {
  Arrival& arrival = ArrivalOf(id);
  if (arrival.rendezvous) {
    if (id == fresh_) fate_ = Fate::kStarted;
    StartReceive(arrival, memory, token);
    arrivals_.Give(static_cast<std::uint32_t>(id));
    return;
  }
  if (arrival.size != 0) std::memcpy(memory, arrival.bytes, arrival.size);
  ended_.push_back({EndKind::kReceived, Code::kOk, 0, token});
  Drop(id);
}

void UcxWire::Drop(ArrivalId id) {
  const Arrival& arrival = ArrivalOf(id);
  // UCX answers the sender of a rendezvous, whose Send then ends as if it had been received.
  if (arrival.held) ucp_am_data_release(receiver_.get(), arrival.bytes);
  if (id == fresh_) fate_ = Fate::kDone;
  arrivals_.Give(static_cast<std::uint32_t>(id));
}

void UcxWire::StartReceive(const Arrival& arrival, std::byte* memory, std::uint64_t token) {
  Operation& operation = NewOperation(false, token);
  operation.peer_id = arrival.peer_id;
  operation.key = arrival.key;
  operation.memory = memory;
  operation.size = arrival.size;
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.cb.recv_am = OnReceived;
  param.user_data = &operation;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  void* target = memory;
  if (!in_place_) {
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
    param.datatype = unpacked_.get();
    target = &operation;
  }
  void* request =
      ucp_am_recv_data_nbx(receiver_.get(), arrival.bytes, target, arrival.size, &param);
  if (!UCS_PTR_IS_PTR(request)) EndOperation(operation, UCS_PTR_RAW_STATUS(request));
}

// How UCX writes to a receive of ours: each piece of the bytes as it comes out of the socket.
const ucp_generic_dt_ops_t& UcxWire::UnpackOps() {
  static const ucp_generic_dt_ops_t ops = {
      .start_pack = [](void*, const void*, std::size_t) -> void* { return nullptr; },
      .start_unpack = [](void*, void* operation, std::size_t) { return operation; },
      .packed_size = [](void* operation) { return static_cast<Operation*>(operation)->size; },
      .pack = [](void*, std::size_t, void*, std::size_t) -> std::size_t { return 0; },
      .unpack = UnpackPiece,
      .finish = [](void*) {},
  };
  return ops;
}

ucs_status_t UcxWire::UnpackPiece(void* argument, std::size_t offset, const void* bytes,
                                  std::size_t size) {
  const Operation& operation = *static_cast<const Operation*>(argument);
  if (offset > operation.size || size > operation.size - offset) return UCS_ERR_MESSAGE_TRUNCATED;
  if (!operation.told) std::memcpy(operation.memory + offset, bytes, size);
  return UCS_OK;
}

}  // namespace headrace::transport
