// What people and their programs may ask of a running service. Everybody who may connect may look;
// who may change something is the helm's to say.
#pragma once

#include <kj/async.h>

#include "ipc/schema/admin.capnp.h"
#include "service/control/desk.h"

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

 private:
  kj::Own<Client> client_;
  Desk& desk_;
};

}  // namespace headrace::service
