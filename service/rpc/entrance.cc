#include "service/rpc/entrance.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "ipc/base/foreign_text.h"
#include "service/rpc/admin.h"
#include "service/rpc/ask_peers.h"
#include "service/rpc/rendezvous.h"
#include "service/rpc/session_server.h"

namespace headrace::service {
namespace {

constexpr std::uint32_t kTimeoutMaxMs = 24U * 3600 * 1000;
constexpr std::size_t kFromMax = 40;
// A client that asks again and again shall not fill the log.
constexpr int kRefusalsSaidMax = 4;

}  // namespace

Status Entrance::CheckAttach(schema::Hello::Reader hello,
                             schema::AttachRequest::Reader request) const {
  const Desk& desk = client_->desk;
  if (Status status = CheckHello(hello, desk.options.version); !status) return status;
  if (desk.draining) {
    return Error(Code::kUnavailable, "the service is stopping and takes no new session");
  }
  if (client_->surplus) {
    return Error(Code::kExhausted, fmt::format("the service has the {} connections that it may "
                                               "have; this one is beyond",
                                               desk.options.connections_max));
  }
  if (client_->session != SessionId{}) {
    return Error(Code::kAlreadyExists,
                 fmt::format("this connection carries session {} already: connect once for each "
                             "rank",
                             client_->session.value));
  }
  if (request.getTimeoutMs() > kTimeoutMaxMs) {
    return Error(Code::kInvalidArgument, fmt::format("timeout of {} ms, at most {} are allowed",
                                                     request.getTimeoutMs(), kTimeoutMaxMs));
  }
  return {};
}

LeaseRequest Entrance::ReadLease(schema::AttachRequest::Reader request) const {
  const auto job = request.getJob();
  const std::uint32_t timeout_ms = request.getTimeoutMs();
  LeaseRequest lease;
  lease.job_name.assign(job.begin(), job.size());
  lease.rank = request.getRank();
  lease.world_size = request.getWorldSize();
  lease.uid = client_->peer.uid;
  lease.pid = client_->peer.pid > 0 ? client_->peer.pid : request.getPid();
  lease.timeout_ms = timeout_ms != 0 ? timeout_ms : client_->desk.options.operation_timeout_ms;
  const auto rendezvous = request.getRendezvous();
  const auto architecture = request.getArchitecture();
  lease.rendezvous.assign(rendezvous.begin(), rendezvous.size());
  lease.architecture.assign(architecture.begin(), architecture.size());
  lease.after_epoch = request.getAfterEpoch();
  lease.can_reconnect = request.getCanReconnect();
  const auto from = request.getRendezvousFrom();
  lease.rendezvous_from = rendezvous.size() == 0 ? "rendezvous of this service's configuration"
                                                 : Printable({from.begin(), from.size()}, kFromMax);
  lease.attached_ns = MonotonicNow();
  return lease;
}

Result<Entrance::Arrival> Entrance::Read(schema::AttachRequest::Reader request,
                                         Result<UniqueFd> channel,
                                         Result<UniqueFd> doorbell) const {
  if (!channel) return channel.error();
  if (!doorbell) return doorbell.error();
  Result<ipc::Channel> opened = ipc::Channel::Open(channel->get());
  if (!opened) return opened.error();
  if (Status status = CheckDoorbell(doorbell->get()); !status) return status.error();
  LeaseRequest lease = ReadLease(request);
  if (Status status = CheckRendezvous(client_->desk.options.rendezvous, lease); !status) {
    return status.error();
  }
  return Arrival{.lease = std::move(lease),
                 .channel = std::move(opened).value(),
                 .doorbell = std::move(doorbell).value()};
}

// Peers are asked about jobs of several nodes only, and then as long as they take: a client's wait
// is bounded by kPeersTimeout.
kj::Promise<void> Entrance::Seat(AttachContext context, Result<Arrival> arrival) {
  Desk& desk = client_->desk;
  if (!arrival) {
    Answer(context, arrival.error());
    return kj::READY_NOW;
  }
  kj::Promise<Status> checked = Status();
  if (!arrival->lease.rendezvous.empty()) {
    checked =
        AskPeers(desk, CheckRank{.job = arrival->lease.job_name, .rank = arrival->lease.rank});
  }
  return checked.then([this, context, came = std::move(arrival).value()](Status status) mutable {
    const auto asked = context.getParams();
    // Once more: while descriptors and answers came, another call may have been answered.
    if (status) status = CheckAttach(asked.getHello(), asked.getRequest());
    if (!status) return Answer(context, status.error());
    const SessionIdentity asker = came.lease;
    const Result<SessionIdentity> opened = client_->desk.leases.Open(
        std::move(came.lease), std::move(came.channel), std::move(came.doorbell));
    if (!opened) TellPeers(asker, opened.error());
    Answer(context, opened);
  });
}

void Entrance::TellPeers(const SessionIdentity& asker, const Error& error) {
  // Whoever waits for a rank of which these are said waits in vain. The others may pass.
  constexpr std::array kLasting = {Code::kMismatch, Code::kExhausted, Code::kInvalidArgument,
                                   Code::kVersionMismatch};
  if (asker.rendezvous.empty() || !CheckJobName(asker.job_name) ||
      std::ranges::find(kLasting, error.code()) == kLasting.end()) {
    return;
  }
  // A rank that comes back finds what its old life still has, and tries again.
  if (asker.after_epoch != 0 && error.code() == Code::kExhausted) return;
  client_->desk.outbox->Send(client_->desk.peers, RankRefused{.job = asker.job_name,
                                                              .leader = asker.rendezvous,
                                                              .world_size = asker.world_size,
                                                              .architecture = asker.architecture,
                                                              .uid = asker.uid,
                                                              .rank = asker.rank,
                                                              .pid = asker.pid,
                                                              .code = error.code(),
                                                              .cause = error.text()});
}

kj::Promise<void> Entrance::attach(AttachContext context) {
  const auto params = context.getParams();
  if (Status status = CheckAttach(params.getHello(), params.getRequest()); !status) {
    LeaseRequest asker = ReadLease(params.getRequest());
    if (CheckRendezvous(client_->desk.options.rendezvous, asker)) TellPeers(asker, status.error());
    Answer(context, status.error());
    return kj::READY_NOW;
  }
  auto channel = TakeDescriptor(params.getRequest().getChannel(), "channel");
  auto doorbell = TakeDescriptor(params.getRequest().getDoorbell(), "doorbell");
  return channel.then([this, context, bell = kj::mv(doorbell)](Result<UniqueFd> memory) mutable {
    return bell.then([this, context, memory = kj::mv(memory)](Result<UniqueFd> event) mutable {
      return Seat(context, Read(context.getParams().getRequest(), kj::mv(memory), kj::mv(event)));
    });
  });
}

void Entrance::Answer(AttachContext& context, const Result<SessionIdentity>& identity) {
  auto results = context.getResults();
  if (!identity) {
    Refuse(results.initRefusal(), identity.error().Within("attach"));
    SayRefusal(identity.error());
    return;
  }
  client_->session = identity->id;
  results.setSession(kj::heap<SessionServer>(kj::addRef(*client_), identity->id));
  auto granted = results.initGranted();
  granted.setSessionId(identity->id.value);
  granted.setJobId(identity->job.value);
  granted.setEpoch(identity->epoch);
  granted.setTimeoutMs(identity->timeout_ms);
}

void Entrance::SayRefusal(const Error& error) {
  if (client_->refusals_said++ >= kRefusalsSaidMax) return;
  // Ranks that wait for the next service ask this one again and again, over a new connection.
  Desk& desk = client_->desk;
  if (desk.draining && std::exchange(desk.stop_refusal_said, true)) return;
  desk.leases.Say(error.code(), JobId{},
                  fmt::format("refused pid {} (uid {}): {}", client_->peer.pid, client_->peer.uid,
                              error.text()),
                  client_->peer.uid);
}

kj::Promise<void> Entrance::admin(AdminContext context) {
  const Status status = CheckHello(context.getParams().getHello(), client_->desk.options.version);
  if (status) {
    context.getResults().setAdmin(kj::heap<Admin>(kj::addRef(*client_)));
  } else {
    Refuse(context.getResults().initRefusal(), status.error());
  }
  return kj::READY_NOW;
}

}  // namespace headrace::service
