// The wire's links: how they begin, fail and end.
#include <fmt/format.h>

#include <set>

#include "ipc/base/check.h"
#include "transport/ucx/accepted.h"
#include "transport/ucx/ucx_wire.h"

namespace headrace::transport {

Result<LinkId> UcxWire::Connect(const std::string& address, std::uint64_t key) {
  const Result<WireAddress> decoded = DecodeAddress(address);
  if (!decoded) return decoded.error();
  if (decoded->settings_sum != settings_sum_) {
    return Error(Code::kUnavailable,
                 "the other node sets UCX differently, and the two would misread each other: give "
                 "their lanes the same UCX settings, and both nodes the same release");
  }
  const Result<std::uint32_t> peer = PeerAt(*decoded);
  if (!peer) return peer.error();
  const LinkId id = links_.Acquire();
  *links_.Find(id) = {.peer = *peer, .peer_wire_id = decoded->wire_id, .key = key};
  HR_CHECK(peers_.Find(*peer) != nullptr, id, *peer);
  return id;
}

// The peer with that address; an endpoint is made when there is none.
Result<std::uint32_t> UcxWire::PeerAt(const WireAddress& address) {
  std::uint32_t found = 0;
  peers_.ForEach([&](std::uint32_t id, const Peer& peer) {
    if (peer.wire_id == address.wire_id) found = id;
  });
  if (found != 0) return found;
  const std::uint32_t id = peers_.Acquire();
  Peer& peer = *peers_.Find(id);
  peer = {.wire = this, .id = id, .wire_id = address.wire_id};
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.ucx_address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = OnPeerError, .arg = &peer};
  const std::set<int> others = TcpSockets(SocketKind::kConnected);
  const ucs_status_t status = ucp_ep_create(engine_.get(), &params, &peer.endpoint);
  std::set<int> ours = TcpSockets(SocketKind::kConnected);
  std::erase_if(ours, [&others](int fd) { return others.contains(fd); });
  KeepQueuesShort(ours);
  if (status == UCS_OK) return id;
  peers_.Release(id);
  return Error(Code::kUnavailable,
               fmt::format("connect over {}: UCX says \"{}\"; the two nodes need a network in "
                           "common among their lanes' net_devices",
                           Names(), ucs_status_string(status)));
}

void UcxWire::Close(LinkId id) {
  const Link* link = links_.Find(id);
  HR_CHECK(link != nullptr, id);
  EndOperations(id, *link, Code::kCancelled);
  links_.Release(id);
}

void UcxWire::CloseEndpoint(ucp_ep_h endpoint) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* request = ucp_ep_close_nbx(endpoint, &param);
  if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
}

void UcxWire::OnPeerError(void* argument, ucp_ep_h, ucs_status_t status) {
  const Peer& peer = *static_cast<const Peer*>(argument);
  peer.wire->failures_.push_back({peer.id, status});
}

void UcxWire::ForgetFailedPeers() {
  for (const Failure& failure : failures_) {
    const Peer* peer = peers_.Find(failure.peer);
    if (peer == nullptr) continue;
    links_.ForEach([&](LinkId id, Link& link) {
      if (link.peer != failure.peer || link.failure != UCS_OK) return;
      link.failure = failure.status;
      EndOperations(id, link, Code::kPeerLost);
      ended_.push_back({EndKind::kLinkFailed, Code::kPeerLost, id, 0});
    });
    CloseEndpoint(peer->endpoint);
    peers_.Release(failure.peer);
  }
  failures_.clear();
}

// A message does not tell its link, but its sender and its group's key.
bool UcxWire::BelongsTo(const Operation& operation, LinkId id, const Link& link) {
  if (operation.sends) return operation.link == id;
  return operation.peer_wire_id == link.peer_wire_id && operation.key == link.key;
}

void UcxWire::EndOperations(LinkId id, const Link& link, Code code) {
  operations_.ForEach([&](std::uint32_t, Operation& operation) {
    if (operation.given_up != Code::kOk || !BelongsTo(operation, id, link)) return;
    operation.given_up = code;
    if (in_place_) return;  // the device may be at work: the end is reported when UCX reports it
    operation.reported = true;
    ended_.push_back({operation.sends ? EndKind::kSent : EndKind::kReceived, code, operation.link,
                      operation.token});
  });
}

std::string UcxWire::CauseOf(const Link& link) const {
  return fmt::format(
      "UCX says \"{}\": the service there ended, restarted or cannot be reached; its log and the "
      "network between the two tell which",
      ucs_status_string(link.failure));
}

}  // namespace headrace::transport
