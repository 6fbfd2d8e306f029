#include "transport/ucx/peers.h"

#include <algorithm>

#include "ipc/base/check.h"
#include "transport/ucx/accepted.h"

namespace headrace::transport {

void CloseEndpoint(ucp_ep_h endpoint) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* request = ucp_ep_close_nbx(endpoint, &param);
  if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
}

std::pair<std::uint32_t, ucs_status_t> UcxPeers::Connect(ucp_worker_h engine,
                                                         const WireAddress& address) {
  std::uint32_t found = 0;
  peers_.ForEach([&](std::uint32_t id, const Peer& peer) {
    if (peer.wire_id == address.wire_id) found = id;
  });
  if (found != 0) return {found, UCS_OK};
  const std::uint32_t id = peers_.Acquire();
  Peer& peer = peers_.At(id);
  peer = {.peers = this, .id = id, .wire_id = address.wire_id};
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.ucx_address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = OnPeerError, .arg = &peer};
  const std::set<int> others = TcpSockets(SocketKind::kConnected);
  const ucs_status_t status = ucp_ep_create(engine, &params, &peer.endpoint);
  std::set<int> ours = TcpSockets(SocketKind::kConnected);
  std::erase_if(ours, [&others](int fd) { return others.contains(fd); });
  KeepQueuesShort(ours);
  FailUnacknowledged(ours, unacknowledged_ms_);
  if (status == UCS_OK) return {id, UCS_OK};
  peers_.Release(id);
  return {0, status};
}

ucp_ep_h UcxPeers::EndpointOf(std::uint32_t peer) {
  const Peer* const found = peers_.Find(peer);
  HR_CHECK(found != nullptr, peer);
  return found->endpoint;
}

void UcxPeers::Forget(std::uint32_t peer) {
  CloseEndpoint(EndpointOf(peer));
  peers_.Release(peer);
}

std::vector<UcxPeers::Failure> UcxPeers::DrainFailures() {
  std::vector<Failure> failures;
  for (const Failure& failure : std::exchange(failures_, {})) {
    // UCX may report one twice.
    const bool twice = std::ranges::any_of(
        failures, [&failure](const Failure& earlier) { return earlier.peer == failure.peer; });
    if (!twice && peers_.Find(failure.peer) != nullptr) failures.push_back(failure);
  }
  return failures;
}

std::set<ucp_ep_h> UcxPeers::Endpoints() const {
  std::set<ucp_ep_h> endpoints;
  peers_.ForEach(
      [&endpoints](std::uint32_t, const Peer& peer) { endpoints.insert(peer.endpoint); });
  return endpoints;
}

void UcxPeers::OnPeerError(void* argument, ucp_ep_h, ucs_status_t status) {
  const Peer& peer = *static_cast<const Peer*>(argument);
  peer.peers->failures_.push_back({peer.id, status});
}

}  // namespace headrace::transport
