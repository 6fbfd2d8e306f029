// What people and their programs may ask of a running service. Everybody who may connect may look;
// who may change something is decided by peers (JobSettings).
#pragma once

#include <kj/async.h>

#include "ipc/schema/admin.capnp.h"
#include "service/rpc/desk.h"

namespace headrace::service {

class Admin final : public schema::Admin::Server {
 public:
  explicit Admin(kj::Own<Client> client) : client_(kj::mv(client)), desk_(client_->desk) {}

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

  kj::Own<Client> client_;
  Desk& desk_;
};

}  // namespace headrace::service
