#include "service/rpc/bootstrap.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "ipc/base/architecture.h"
#include "ipc/base/check.h"
#include "ipc/base/foreign_text.h"
#include "service/accounts/rank_table.h"
#include "service/loop/text.h"
#include "service/rpc/descriptors.h"
#include "service/session/quorum.h"
#include "transport/transport.h"

namespace headrace::service {
namespace {

constexpr std::uint32_t kTimeoutMaxMs = 24U * 3600 * 1000;
constexpr std::size_t kFromMax = 40;
constexpr std::size_t kProgramNameMax = 127;
// A client that asks again and again shall not fill the log.
constexpr int kRefusalsReportedMax = 4;
// What calls cost, in messages: a session is watched, maybe joined with other nodes, and ended; a
// question may dial another service.
constexpr TimeNs kMessagesPerAttach = 50;
constexpr TimeNs kMessagesPerQuorum = 10;
// A question is answered by then, decided or not: well before a client gives up waiting for it.
constexpr TimeNs kQuorumAnswerMax = 2 * kSecond;

std::vector<std::uint32_t> ReadMembers(capnp::List<std::uint32_t>::Reader list) {
  // One more than there may be is enough to be refused.
  const auto count = std::min<unsigned>(list.size(), transport::kMembersMax + 1);
  std::vector<std::uint32_t> members;
  for (unsigned i = 0; i < count; ++i) members.push_back(list[i]);
  return members;
}

void WriteMembers(schema::Membership::Builder builder, const Membership& membership) {
  builder.setGeneration(membership.generation);
  auto list = builder.initMembers(static_cast<unsigned>(membership.members.size()));
  for (unsigned i = 0; i < list.size(); ++i) list.set(i, membership.members[i]);
}

SlowBound ReadSlowBound(schema::AttachRequest::Reader request) {
  return {.seconds = request.getSlowS(), .least_world = request.getSlowLeastWorld()};
}

// By rank; none are said where each is what its rank says.
Status CheckMembers(schema::AttachRequest::Reader request) {
  if (request.getMembers().size() == 0) return {};
  const Membership membership{.members = ReadMembers(request.getMembers())};
  if (Status status = CheckMembership(membership); !status) return status;
  if (membership.members.size() == request.getWorldSize() &&
      request.getRank() < request.getWorldSize()) {
    return {};
  }
  return Error(Code::kInvalidArgument,
               fmt::format("{} members, and rank {} of {}", membership.members.size(),
                           request.getRank(), request.getWorldSize()));
}

}  // namespace

Status CheckHello(schema::Hello::Reader hello, std::string_view service_version) {
  if (hello.getProtocolVersion() == schema::PROTOCOL_VERSION) return {};
  const auto program = hello.getProgram();
  return Error(Code::kVersionMismatch,
               fmt::format("headraced {} speaks protocol {}, {} speaks protocol {}: update the {}",
                           service_version, schema::PROTOCOL_VERSION,
                           Printable({program.begin(), program.size()}, kProgramNameMax),
                           hello.getProtocolVersion(),
                           hello.getProtocolVersion() < schema::PROTOCOL_VERSION
                               ? "latter, which is older"
                               : "service, which is older"));
}

Status Bootstrap::CheckAttach(schema::Hello::Reader hello,
                              schema::AttachRequest::Reader request) const {
  if (Status status = CheckHello(hello, ports_.version); !status) return status;
  if (ports_.shutdown.begun()) {
    return Error(Code::kUnavailable, "the service is stopping and takes no new session");
  }
  if (client_->surplus) {
    return Error(Code::kExhausted, fmt::format("the service has the {} connections that it may "
                                               "have; this one is beyond",
                                               ports_.connections_max));
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
  const auto sends = request.getSendsClass();
  if (sends.size() != 0 && !SendsClassOf({sends.begin(), sends.size()})) {
    return Error(Code::kInvalidArgument,
                 fmt::format("sends of class \"{}\": there are above and same",
                             Printable({sends.begin(), sends.size()}, kFromMax)));
  }
  const auto architecture = request.getArchitecture();
  if (architecture.size() != 0 && !ArchitectureNamed({architecture.begin(), architecture.size()})) {
    return Error(Code::kInvalidArgument,
                 fmt::format("unknown architecture \"{}\" (known: {})",
                             Printable({architecture.begin(), architecture.size()}, kFromMax),
                             fmt::join(kArchitectureNames, ", ")));
  }
  if (Status status = CheckSlowBound(ReadSlowBound(request)); !status) return status;
  return CheckMembers(request);
}

LeaseRequest Bootstrap::ReadLease(schema::AttachRequest::Reader request) const {
  const auto job = request.getJob();
  const std::uint32_t timeout_ms = request.getTimeoutMs();
  LeaseRequest lease;
  lease.job_name.assign(job.begin(), job.size());
  lease.rank = request.getRank();
  lease.world_size = request.getWorldSize();
  const auto members = request.getMembers();
  lease.member = lease.rank < members.size() ? members[lease.rank] : lease.rank;
  lease.members_hash = HashOfMembers(ReadMembers(members));
  lease.uid = client_->process.uid;
  lease.pid_is_known = client_->process.pid > 0;
  lease.pid = lease.pid_is_known ? client_->process.pid : request.getPid();
  lease.timeout_ms = timeout_ms != 0 ? timeout_ms : ports_.operation_timeout_ms;
  const auto rendezvous = request.getRendezvous();
  const auto architecture = request.getArchitecture();
  lease.rendezvous.assign(rendezvous.begin(), rendezvous.size());
  lease.architecture = ArchitectureNamed({architecture.begin(), architecture.size()});
  lease.after_epoch = request.getAfterEpoch();
  lease.can_reconnect = request.getCanReconnect();
  const auto from = request.getRendezvousFrom();
  lease.rendezvous_from = rendezvous.size() == 0 ? "rendezvous of this service's configuration"
                                                 : Printable({from.begin(), from.size()}, kFromMax);
  const auto sends = request.getSendsClass();
  lease.sends_class = SendsClassOf({sends.begin(), sends.size()});
  lease.slow_bound = ReadSlowBound(request);
  lease.min_world = request.getMinWorld();
  lease.attached_ns = MonotonicNow();
  return lease;
}

Result<Bootstrap::Arrival> Bootstrap::Read(schema::AttachRequest::Reader request,
                                           Result<UniqueFd> channel,
                                           Result<UniqueFd> doorbell) const {
  if (!channel) return channel.error();
  if (!doorbell) return doorbell.error();
  Result<ipc::Channel> opened = ipc::Channel::Open(channel->get());
  if (!opened) return opened.error();
  if (Status status = CheckDoorbell(doorbell->get()); !status) return status.error();
  LeaseRequest lease = ReadLease(request);
  if (Status status = CheckRendezvous(ports_.rendezvous, lease); !status) {
    return status.error();
  }
  return Arrival{.lease = std::move(lease),
                 .channel = std::move(opened).value(),
                 .doorbell = std::move(doorbell).value()};
}

// Peers are asked about jobs of several nodes only, and then as long as they take: a client's wait
// is bounded by kPeersTimeout.
kj::Promise<void> Bootstrap::FinishAttach(AttachContext context, Result<Arrival> arrival) {
  if (!arrival) {
    Answer(context, arrival.error());
    return kj::READY_NOW;
  }
  kj::Promise<Status> checked = Status();
  if (!arrival->lease.rendezvous.empty()) {
    checked = ports_.peers.Ask(CheckRank{
        .job = arrival->lease.job_name, .uid = arrival->lease.uid, .rank = arrival->lease.rank});
  }
  return checked.then([this, context, came = std::move(arrival).value()](Status status) mutable {
    const auto asked = context.getParams();
    // Once more: while descriptors and answers came, another call may have been answered.
    if (status) status = CheckAttach(asked.getHello(), asked.getRequest());
    if (!status) return Answer(context, status.error());
    const SessionIdentity asker = came.lease;
    const Result<SessionIdentity> opened = ports_.leases.Open(
        std::move(came.lease), std::move(came.channel), std::move(came.doorbell));
    if (!opened) ReportRankRefused(asker, opened.error());
    Answer(context, opened);
  });
}

void Bootstrap::ReportRankRefused(const SessionIdentity& asker, const Error& error) {
  // Whoever waits for a rank of which these are said waits in vain. The others may pass.
  constexpr std::array kLasting = {Code::kMismatch, Code::kExhausted, Code::kInvalidArgument,
                                   Code::kVersionMismatch};
  if (asker.rendezvous.empty() || !CheckJobName(asker.job_name) ||
      std::ranges::find(kLasting, error.code()) == kLasting.end()) {
    return;
  }
  // A rank that comes back finds what its old life still has, and tries again.
  if (asker.after_epoch != 0 && error.code() == Code::kExhausted) return;
  ports_.peers.SendReliably(RankRefused{.job = asker.job_name,
                                        .leader = asker.rendezvous,
                                        .world_size = asker.world_size,
                                        .architecture = asker.architecture,
                                        .uid = asker.uid,
                                        .rank = asker.rank,
                                        .pid = asker.pid,
                                        .code = error.code(),
                                        .cause = error.text()});
}

kj::Promise<void> Bootstrap::attach(AttachContext context) {
  client_->Charge(kMessagesPerAttach);
  const auto params = context.getParams();
  if (Status status = CheckAttach(params.getHello(), params.getRequest()); !status) {
    LeaseRequest asker = ReadLease(params.getRequest());
    if (CheckRendezvous(ports_.rendezvous, asker)) ReportRankRefused(asker, status.error());
    Answer(context, status.error());
    return kj::READY_NOW;
  }
  // Each holds descriptors and a mapping for as long as other nodes take to answer.
  if (client_->attaching) {
    Answer(context, Error(Code::kBusy,
                          "another attach of this connection is not answered yet: "
                          "connect once for each rank"));
    return kj::READY_NOW;
  }
  client_->attaching = true;
  auto channel = CopyDescriptor(params.getRequest().getChannel(), "channel");
  auto doorbell = CopyDescriptor(params.getRequest().getDoorbell(), "doorbell");
  return channel
      .then([this, context, bell = kj::mv(doorbell)](Result<UniqueFd> memory) mutable {
        return bell.then([this, context, memory = kj::mv(memory)](Result<UniqueFd> event) mutable {
          return FinishAttach(
              context, Read(context.getParams().getRequest(), kj::mv(memory), kj::mv(event)));
        });
      })
      .attach(kj::defer([client = kj::addRef(*client_)]() mutable { client->attaching = false; }));
}

void Bootstrap::Answer(AttachContext& context, const Result<SessionIdentity>& identity) {
  auto results = context.getResults();
  if (!identity) {
    Refuse(results.initRefusal(), identity.error().Within("attach"));
    ReportRefusal(identity.error());
    return;
  }
  // A second one would be nobody's, and its lease would never end.
  HR_CHECK(client_->session == SessionId{} && identity->id != SessionId{}, client_->session.value,
           identity->id.value);
  HR_CHECK(identity->timeout_ms != 0 && identity->epoch != 0, identity->id.value);
  client_->session = identity->id;
  results.setSession(kj::heap<SessionServer>(kj::addRef(*client_), identity->id, ports_.session));
  auto granted = results.initGranted();
  granted.setSessionId(identity->id.value);
  granted.setJobId(identity->job.value);
  granted.setEpoch(identity->epoch);
  granted.setTimeoutMs(identity->timeout_ms);
}

void Bootstrap::ReportRefusal(const Error& error) {
  if (client_->refusals_reported++ >= kRefusalsReportedMax) return;
  if (ports_.shutdown.begun() && !ports_.shutdown.ShouldLogRefusal()) return;
  ports_.leases.ReportEvent(error.code(), JobId{},
                            fmt::format("refused pid {} (uid {}): {}", client_->process.pid,
                                        client_->process.uid, error.text()),
                            client_->process.uid);
}

Result<AskQuorum> Bootstrap::ReadQuorum(schema::Hello::Reader hello,
                                        schema::QuorumRequest::Reader request) const {
  if (Status status = CheckHello(hello, ports_.version); !status) return status.error();
  if (ports_.shutdown.begun()) {
    return Error(Code::kUnavailable, "the service is stopping and takes no new session");
  }
  const auto membership = request.getMembership();
  AskQuorum ask{.job = request.getJob().cStr(),
                .uid = client_->process.uid,
                .pid = client_->process.pid > 0 ? client_->process.pid : request.getPid(),
                .leader = {},
                .role = static_cast<MemberRole>(request.getRole()),
                .member = request.getMember(),
                .membership = {.generation = membership.getGeneration(),
                               .members = ReadMembers(membership.getMembers())},
                .epoch = request.getAfterEpoch(),
                .rules = {.min_world = request.getMinWorld(), .grace_ms = request.getGraceMs()},
                .until_ns = MonotonicNow() + kQuorumAnswerMax};
  if (Status status = CheckJobName(ask.job); !status) return status.error();
  if (request.getRole() >= kMemberRolesCount) {
    return Error(Code::kInvalidArgument, fmt::format("role {}: 0 to {} are known",
                                                     request.getRole(), kMemberRolesCount - 1));
  }
  const bool is_member = ask.role == MemberRole::kMember;
  if (Status status = CheckMembership(ask.membership); is_member && !status) return status.error();
  if ((is_member && !ask.membership.RankOf(ask.member)) || ask.epoch >= kEpochMax ||
      ask.rules.grace_ms > kQuorumGraceMaxMs) {
    return Error(
        Code::kInvalidArgument,
        fmt::format("member {} after epoch {}, with a grace of {} ms: a member of the "
                    "membership, less than {} and at most {} ms are possible",
                    ask.member, ask.epoch, ask.rules.grace_ms, kEpochMax, kQuorumGraceMaxMs));
  }
  LeaseRequest place;
  place.job_name = ask.job;
  place.rendezvous = request.getRendezvous().cStr();
  if (Status status = CheckRendezvous(ports_.rendezvous, place); !status) return status.error();
  ask.leader = place.rendezvous;
  const auto kept = request.getPlaces();
  Result<std::vector<JobPlace>> places = ParsePlaces({kept.begin(), kept.size()});
  if (!places) return places.error();
  ask.places = std::move(places).value();
  return ask;
}

kj::Promise<void> Bootstrap::joinQuorum(JoinQuorumContext context) {
  client_->Charge(kMessagesPerQuorum);
  const auto params = context.getParams();
  Result<AskQuorum> ask = ReadQuorum(params.getHello(), params.getRequest());
  if (!ask) {
    Refuse(context.getResults().initRefusal(), ask.error());
    return kj::READY_NOW;
  }
  if (client_->quorum_client == 0) {
    client_->quorum_client = ports_.peers.NextClient();
    client_->quorum_lost = [&peers = ports_.peers, client = client_->quorum_client](bool exited) {
      peers.SendReliably(QuorumClientLost{.client = client, .exited = exited});
    };
  }
  ask->client = client_->quorum_client;
  return ports_.peers.Ask(std::move(ask).value()).then([context](QuorumAnswered answer) mutable {
    auto results = context.getResults();
    if (!answer.waits.empty()) {
      results.setWaits(answer.waits.c_str());
    } else if (!answer.quorum) {
      Refuse(results.initRefusal(), answer.quorum.error());
    } else {
      auto quorum = results.initQuorum();
      quorum.setEpoch(answer.quorum->epoch);
      quorum.setOwn(answer.quorum->own);
      quorum.setRendezvous(answer.quorum->rendezvous.c_str());
      WriteMembers(quorum.initMembership(), answer.quorum->membership);
      auto lost = quorum.initLost(static_cast<unsigned>(answer.quorum->lost.size()));
      for (unsigned i = 0; i < lost.size(); ++i) {
        lost[i].setMember(answer.quorum->lost[i].member);
        lost[i].setCause(answer.quorum->lost[i].cause.c_str());
      }
    }
  });
}

kj::Promise<void> Bootstrap::admin(AdminContext context) {
  const Status status = CheckHello(context.getParams().getHello(), ports_.version);
  if (status) {
    context.getResults().setAdmin(kj::heap<Admin>(kj::addRef(*client_), ports_.admin));
  } else {
    Refuse(context.getResults().initRefusal(), status.error());
  }
  return kj::READY_NOW;
}

}  // namespace headrace::service
