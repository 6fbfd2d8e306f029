// The calls of a connection that has no session yet: to attach, or to use the admin's interface.
#pragma once

#include <kj/async.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "ipc/channel.h"
#include "ipc/schema/client.capnp.h"
#include "service/rpc/admin.h"
#include "service/rpc/client.h"
#include "service/rpc/peers_requests.h"
#include "service/rpc/rendezvous.h"
#include "service/rpc/session_server.h"
#include "service/rpc/shutdown.h"

namespace headrace::service {

// Names both versions and both programs when they differ.
Status CheckHello(schema::Hello::Reader hello, std::string_view service_version);

// All outlive the capability.
struct BootstrapPorts {
  Leases& leases;
  PeersRequests& peers;
  Shutdown& shutdown;
  const std::string& version;
  const RendezvousRules& rendezvous;
  std::uint32_t connections_max;
  std::uint32_t operation_timeout_ms;
  const SessionPorts& session;
  const AdminPorts& admin;
};

class Bootstrap final : public schema::Bootstrap::Server {
 public:
  Bootstrap(kj::Own<Client> client, const BootstrapPorts& ports)
      : client_(kj::mv(client)), ports_(ports) {}

  kj::Promise<void> attach(AttachContext context) override;
  kj::Promise<void> admin(AdminContext context) override;
  kj::Promise<void> joinQuorum(JoinQuorumContext context) override;

 private:
  // What can be refused before the descriptors are looked at.
  Status CheckAttach(schema::Hello::Reader hello, schema::AttachRequest::Reader request) const;
  // A rank that has handed over what it must and waits for its slot.
  struct Arrival {
    LeaseRequest lease;
    ipc::Channel channel;
    UniqueFd doorbell;
  };
  LeaseRequest ReadLease(schema::AttachRequest::Reader request) const;
  Result<Arrival> Read(schema::AttachRequest::Reader request, Result<UniqueFd> channel,
                       Result<UniqueFd> doorbell) const;
  kj::Promise<void> FinishAttach(AttachContext context, Result<Arrival> arrival);
  void Answer(AttachContext& context, const Result<SessionIdentity>& identity);
  Result<AskQuorum> ReadQuorum(schema::Hello::Reader hello,
                               schema::QuorumRequest::Reader request) const;
  // The refused rank's job may gather on several nodes.
  void ReportRankRefused(const SessionIdentity& asker, const Error& error);
  void ReportRefusal(const Error& error);

  kj::Own<Client> client_;
  BootstrapPorts ports_;
};

}  // namespace headrace::service
