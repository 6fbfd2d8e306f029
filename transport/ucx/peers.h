// The wires that this one exchanges messages with, and UCX's endpoint towards each.
//
// Part of UcxWire, on its thread. UCX reports a failed peer from inside its own calls: that is only
// recorded, and handled when UcxWire drains the failures.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "transport/slots.h"
#include "transport/ucx/address.h"

namespace headrace::transport {

// By force, without a word to the other side; see UcxWire for when that is safe.
void CloseEndpoint(ucp_ep_h endpoint);

class UcxPeers {
 public:
  struct Failure {
    std::uint32_t peer = 0;
    ucs_status_t status = UCS_OK;
  };

  UcxPeers() = default;
  // For connections that are made from now on: UcxOptions::unacknowledged_ms.
  void SetUnacknowledged(int after_ms) { unacknowledged_ms_ = after_ms; }
  UcxPeers(const UcxPeers&) = delete;
  UcxPeers& operator=(const UcxPeers&) = delete;

  // The peer with that address, and UCS_OK; an endpoint of `engine` is made when there is none.
  // Without one, peer 0 and what UCX says.
  std::pair<std::uint32_t, ucs_status_t> Connect(ucp_worker_h engine, const WireAddress& address);
  // The peer must be there.
  ucp_ep_h EndpointOf(std::uint32_t peer);
  // Closes its endpoint.
  void Forget(std::uint32_t peer);

  bool has_failures() const { return !failures_.empty(); }
  // Failures of peers that are there; each is to be forgotten.
  std::vector<Failure> DrainFailures();

  std::set<ucp_ep_h> Endpoints() const;

 private:
  struct Peer {
    UcxPeers* peers = nullptr;
    std::uint32_t id = 0;
    std::uint64_t wire_id = 0;
    ucp_ep_h endpoint = nullptr;
  };

  static void OnPeerError(void* peer, ucp_ep_h endpoint, ucs_status_t status);

  Slots<Peer> peers_;  // UCX knows where each lies
  std::vector<Failure> failures_;
  int unacknowledged_ms_ = 0;
};

}  // namespace headrace::transport
