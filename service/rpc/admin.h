// The requests of users and their programs to a running service. Everybody who may connect may
// read; peers decides who may change something (JobSettings).
#pragma once

#include <kj/async.h>
#include <kj/timer.h>

#include <cstdint>
#include <optional>
#include <string>

#include "ipc/schema/admin.capnp.h"
#include "service/rpc/client.h"
#include "service/rpc/dispatch_requests.h"
#include "service/rpc/peers_requests.h"
#include "service/rpc/probe.h"
#include "service/rpc/shutdown.h"

namespace headrace::service {

// All outlive the capability.
struct AdminPorts {
  DispatchRequests& dispatch;
  PeersRequests& peers;
  Probe& probe;
  Shutdown& shutdown;
  kj::Timer& timer;
  const std::string& version;
  const std::string& config_text;
};

class Admin final : public schema::Admin::Server {
 public:
  Admin(kj::Own<Client> client, const AdminPorts& ports) : client_(kj::mv(client)), ports_(ports) {}

  kj::Promise<void> describe(DescribeContext context) override;
  kj::Promise<void> ping(PingContext context) override;
  kj::Promise<void> setPolicy(SetPolicyContext context) override;
  kj::Promise<void> steer(SteerContext context) override;
  kj::Promise<void> probe(ProbeContext context) override;
  kj::Promise<void> peers(PeersContext context) override;
  kj::Promise<void> tryPeer(TryPeerContext context) override;
  kj::Promise<void> drain(DrainContext context) override;

 private:
  // Asks peers for the change and fills its answer in.
  template <typename Context>
  kj::Promise<void> Change(Context context, ChangeSetting change, const char* what);
  // What is no uid names nobody.
  static std::optional<std::uint32_t> ReadOwner(std::int64_t owner);

  kj::Own<Client> client_;
  AdminPorts ports_;
};

}  // namespace headrace::service
