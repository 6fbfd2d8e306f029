// The wire's messages: how they are sent, announced and received.
#include <algorithm>
#include <cstring>

#include "ipc/base/check.h"
#include "transport/ucx/ucx_wire.h"

namespace headrace::transport {
namespace {

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

UcxWire::Operation& UcxWire::NewOperation(bool sends, std::uint64_t token) {
  const std::uint32_t id = operations_.Acquire();
  Operation& operation = *operations_.Find(id);
  operation = {.wire = this, .id = id, .sends = sends, .token = token};
  return operation;
}

void UcxWire::Send(LinkId link_id, const MessageHeader& header, const std::byte* bytes,
                   std::size_t size, std::uint64_t token) {
  const Link* link = links_.Find(link_id);
  HR_CHECK(link != nullptr, link_id);
  HR_CHECK(header.key == link->key, link_id, header.key);
  if (link->failure != UCS_OK) {
    ended_.push_back({EndKind::kSent, Code::kPeerLost, link_id, token});
    return;
  }
  Operation& operation = NewOperation(true, token);
  operation.link = link_id;
  operation.envelope = {wire_id_, header};
  ucp_request_param_t param{};
  operation.memory = const_cast<std::byte*>(bytes);
  operation.size = size;
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.flags =
      GoesAtOnce(size) ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV | UCP_AM_SEND_FLAG_REPLY;
  param.cb.send = OnSent;
  param.user_data = &operation;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  const void* source = bytes;
  if (!in_place_) {
    size += sizeof(kWhole);
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
    param.datatype = pieces_.get();
    source = &operation;
  }
  void* request = ucp_am_send_nbx(peers_.Find(link->peer)->endpoint, kMessageId,
                                  &operation.envelope, sizeof(Envelope), source, size, &param);
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
  if (!operation.reported) {
    Code code = operation.given_up != Code::kOk ? operation.given_up : CodeOf(status);
    // UCX cancels what it cannot go on with; nobody here asked for that.
    if (code == Code::kCancelled && operation.given_up == Code::kOk) code = Code::kPeerLost;
    if (code == Code::kOk && !operation.sends && !in_place_ && operation.trailer != kWhole) {
      code = Code::kPeerLost;  // the sender gave it up
    }
    ended_.push_back({operation.sends ? EndKind::kSent : EndKind::kReceived, code, operation.link,
                      operation.token});
  }
  operations_.Release(operation.id);
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
  if (wire.in_place_) return wire.Announce(envelope, bytes, size, *param);
  if (size < sizeof(kWhole)) {
    ++wire.malformed_count_;
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
  Arrival& arrival = *arrivals_.Find(id);
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

void UcxWire::Accept(ArrivalId id, std::byte* memory, std::uint64_t token) {
  Arrival& arrival = ArrivalOf(id);
  if (arrival.rendezvous) {
    if (id == fresh_) fate_ = Fate::kStarted;
    HR_CHECK(memory != nullptr || arrival.size == 0, id, arrival.size);
    StartReceive(arrival, memory, token);
    arrivals_.Release(static_cast<std::uint32_t>(id));
    return;
  }
  if (arrival.size != 0) std::memcpy(memory, arrival.bytes, arrival.size);
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
  Operation& operation = NewOperation(false, token);
  operation.peer_wire_id = arrival.peer_wire_id;
  operation.key = arrival.key;
  operation.memory = memory;
  operation.size = arrival.size;
  operation.source = arrival.source;
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.cb.recv_am = OnReceived;
  param.user_data = &operation;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  void* target = memory;
  if (!in_place_) {
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
    param.datatype = pieces_.get();
    target = &operation;
    operation.trailer = 0;
  }
  void* request = ucp_am_recv_data_nbx(engine_.get(), arrival.bytes, target, arrival.size, &param);
  if (!UCS_PTR_IS_PTR(request)) EndOperation(operation, UCS_PTR_RAW_STATUS(request));
}

// How UCX gets at the memory of messages: piece by piece, as the socket takes and gives.
const ucp_generic_dt_ops_t& UcxWire::PieceOps() {
  static const ucp_generic_dt_ops_t ops = {
      .start_pack = [](void*, const void* operation,
                       std::size_t) { return const_cast<void*>(operation); },
      .start_unpack = [](void*, void* operation, std::size_t) { return operation; },
      .packed_size =
          [](void* operation) { return static_cast<Operation*>(operation)->size + sizeof(kWhole); },
      .pack = PackPiece,
      .unpack = UnpackPiece,
      .finish = [](void*) {},
  };
  return ops;
}

std::size_t UcxWire::PackPiece(void* argument, std::size_t offset, void* bytes,
                               std::size_t size_max) {
  const Operation& operation = *static_cast<const Operation*>(argument);
  const std::size_t size = std::min(size_max, operation.size + sizeof(kWhole) - offset);
  auto* piece = static_cast<std::byte*>(bytes);
  if (operation.reported) {
    // The announced size must be filled, and the memory is no longer ours.
    std::memset(piece, 0, size);
    return size;
  }
  CopyCommon(offset, size, 0, operation.size, [&](std::size_t from, std::size_t to, std::size_t n) {
    std::memcpy(piece + to, operation.memory + from, n);
  });
  CopyCommon(offset, size, operation.size, sizeof(kWhole),
             [&](std::size_t from, std::size_t to, std::size_t n) {
               std::memcpy(piece + to, reinterpret_cast<const std::byte*>(&kWhole) + from, n);
             });
  return size;
}

ucs_status_t UcxWire::UnpackPiece(void* argument, std::size_t offset, const void* bytes,
                                  std::size_t size) {
  Operation& operation = *static_cast<Operation*>(argument);
  const std::size_t size_max = operation.size + sizeof(kWhole);
  if (offset > size_max || size > size_max - offset) return UCS_ERR_MESSAGE_TRUNCATED;
  if (operation.reported) return UCS_OK;
  const auto* piece = static_cast<const std::byte*>(bytes);
  CopyCommon(offset, size, 0, operation.size, [&](std::size_t to, std::size_t from, std::size_t n) {
    std::memcpy(operation.memory + to, piece + from, n);
  });
  CopyCommon(offset, size, operation.size, sizeof(kWhole),
             [&](std::size_t to, std::size_t from, std::size_t n) {
               std::memcpy(reinterpret_cast<std::byte*>(&operation.trailer) + to, piece + from, n);
             });
  return UCS_OK;
}

}  // namespace headrace::transport
