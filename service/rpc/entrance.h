// What a connection can ask for before it is anybody: to attach, or to speak as an admin.
#pragma once

#include <kj/async.h>

#include "ipc/channel.h"
#include "ipc/schema/client.capnp.h"
#include "service/rpc/desk.h"

namespace headrace::service {

class Entrance final : public schema::Entrance::Server {
 public:
  explicit Entrance(kj::Own<Client> client) : client_(kj::mv(client)) {}

  kj::Promise<void> attach(AttachContext context) override;
  kj::Promise<void> admin(AdminContext context) override;

 private:
  // What can be refused before the descriptors are looked at.
  Status CheckAttach(schema::Hello::Reader hello, schema::AttachRequest::Reader request) const;
  // A rank that has handed over what it must and waits for its seat.
  struct Arrival {
    LeaseRequest lease;
    ipc::Channel channel;
    UniqueFd doorbell;
  };
  LeaseRequest ReadLease(schema::AttachRequest::Reader request) const;
  Result<Arrival> Read(schema::AttachRequest::Reader request, Result<UniqueFd> channel,
                       Result<UniqueFd> doorbell) const;
  kj::Promise<void> Seat(AttachContext context, Result<Arrival> arrival);
  void Answer(AttachContext& context, const Result<SessionIdentity>& identity);
  // The refused rank's job may gather on several nodes.
  void TellPeers(const SessionIdentity& asker, const Error& error);
  void SayRefusal(const Error& error);

  kj::Own<Client> client_;
};

}  // namespace headrace::service
