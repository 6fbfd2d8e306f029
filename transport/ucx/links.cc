// The wire's links: how they begin, fail and end.
#include <fmt/format.h>

#include "transport/ucx/address.h"
#include "transport/ucx/ucx_wire.h"

namespace headrace::transport {

Result<LinkId> UcxWire::Connect(const std::string& address) {
  const Result<WireAddress> peer = DecodeAddress(address);
  if (!peer) return peer.error();
  const LinkId id = links_.Take();
  Link& link = *links_.Find(id);
  link = {.wire = this, .id = id, .peer_id = peer->wire_id};
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(peer->ucx_address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = OnLinkError, .arg = &link};
  const ucs_status_t status = ucp_ep_create(sender_.get(), &params, &link.endpoint);
  if (status != UCS_OK) {
    links_.Give(id);
    return Error(Code::kUnavailable,
                 fmt::format("connect over {}: UCX says \"{}\"; the two nodes need a network in "
                             "common among their lanes' net_devices",
                             Names(), ucs_status_string(status)));
  }
  return id;
}

void UcxWire::Close(LinkId id) {
  Link* link = links_.Find(id);
  HR_CHECK(link != nullptr, id);
  GiveUpReceives(*link, Code::kCancelled);
  ucp_ep_h endpoint = std::exchange(link->endpoint, nullptr);
  links_.Give(id);  // first: what ends below ends because of the close
  CloseEndpoint(endpoint);
}

void UcxWire::CloseEndpoint(ucp_ep_h endpoint) {
  if (endpoint == nullptr) return;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* request = ucp_ep_close_nbx(endpoint, &param);
  if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
}

void UcxWire::OnLinkError(void* argument, ucp_ep_h, ucs_status_t status) {
  Link& link = *static_cast<Link*>(argument);
  link.failure = status;
  link.wire->failed_.push_back(link.id);
}

void UcxWire::CloseFailedLinks() {
  for (const LinkId id : failed_) {
    Link* link = links_.Find(id);
    if (link == nullptr) continue;
    GiveUpReceives(*link, Code::kPeerLost);
    CloseEndpoint(std::exchange(link->endpoint, nullptr));
    ended_.push_back({EndKind::kLinkFailed, Code::kPeerLost, id, 0});
  }
  failed_.clear();
}

// A message does not tell its link, but its sender and its group's key. A link that has sent
// nothing yet has no key: then what no other link has claimed is its.
bool UcxWire::BelongsTo(const Link& link, std::uint64_t peer_id, std::uint64_t key) {
  if (link.peer_id != peer_id) return false;
  if (link.key != 0) return link.key == key;
  bool claimed = false;
  links_.ForEach([&](LinkId, const Link& other) {
    claimed = claimed || (other.peer_id == peer_id && other.key == key);
  });
  return !claimed;
}

void UcxWire::GiveUpReceives(const Link& link, Code code) {
  operations_.ForEach([&](std::uint32_t, Operation& operation) {
    if (operation.sends || operation.given_up != Code::kOk) return;
    if (!BelongsTo(link, operation.peer_id, operation.key)) return;
    operation.given_up = code;
    if (in_place_) return;  // the device may still write: the end is told when UCX tells it
    operation.told = true;
    ended_.push_back({EndKind::kReceived, code, 0, operation.token});
  });
}

std::string UcxWire::CauseOf(const Link& link) const {
  return fmt::format(
      "UCX says \"{}\": the service there ended, restarted or cannot be reached; its log and the "
      "network between the two tell which",
      ucs_status_string(link.failure));
}

}  // namespace headrace::transport
