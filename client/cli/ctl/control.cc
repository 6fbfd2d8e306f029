#include "client/cli/ctl/control.h"

#include <capnp/rpc-twoparty.h>
#include <fmt/format.h>
#include <kj/async-io.h>

#include <utility>

#include "ipc/base/foreign_text.h"
#include "ipc/schema/admin.capnp.h"
#include "ipc/schema/client.capnp.h"

namespace headrace::ctl {
namespace {

Error ErrorOf(const kj::Exception& exception) {
  const Code code = exception.getType() == kj::Exception::Type::OVERLOADED     ? Code::kTimeout
                    : exception.getType() == kj::Exception::Type::DISCONNECTED ? Code::kUnavailable
                                                                               : Code::kInternal;
  return Error(code, CauseInForeignText(exception.getDescription().cStr()));
}

Error Refused(std::uint8_t code, const std::string& text) {
  return Error(code < kCodesCount ? static_cast<Code>(code) : Code::kInternal, text);
}

// Says hello and runs `converse(admin)`, which ends by filling `result`, as one promise.
template <typename Answer, typename Converse>
kj::Promise<void> Greet(schema::Bootstrap::Client bootstrap, Result<Answer>& result,
                        Converse& converse) {
  auto request = bootstrap.adminRequest();
  request.initHello().setProtocolVersion(schema::PROTOCOL_VERSION);
  request.getHello().setProgram("headracectl");
  return request.send().then([&result, &converse](auto&& hello) -> kj::Promise<void> {
    const auto refusal = hello.getRefusal();
    if (refusal.getCode() == 0) return converse(hello.getAdmin());
    result = Refused(refusal.getCode(), refusal.getText().cStr());
    return kj::READY_NOW;
  });
}

// The whole conversation: connects, says hello, converses; takes at most `timeout_ns`.
template <typename Answer, typename Converse>
Result<Answer> Talk(const std::string& socket_path, TimeNs timeout_ns, Result<Answer>& result,
                    Converse&& converse) {
  bool reached = false;
  KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&] {
                 auto io = kj::setupAsyncIo();
                 auto late =
                     io.provider->getTimer().afterDelay(timeout_ns * kj::NANOSECONDS).then([&] {
                       result = Error(Code::kTimeout, fmt::format("no answer within {} ms",
                                                                  timeout_ns / kMillisecond));
                     });
                 kj::Own<kj::AsyncIoStream> stream;
                 kj::Own<capnp::TwoPartyClient> client;
                 auto talk = io.provider->getNetwork()
                                 .parseAddress(kj::str("unix:", socket_path.c_str()))
                                 .then([](kj::Own<kj::NetworkAddress>&& address) {
                                   return address->connect().attach(kj::mv(address));
                                 })
                                 .then([&](kj::Own<kj::AsyncIoStream>&& connected) {
                                   stream = kj::mv(connected);
                                   reached = true;
                                   client = kj::heap<capnp::TwoPartyClient>(*stream);
                                   return Greet(client->bootstrap().castAs<schema::Bootstrap>(),
                                                result, converse);
                                 });
                 talk.exclusiveJoin(kj::mv(late)).wait(io.waitScope);
               })) {
    result = ErrorOf(*exception);
  }
  if (result) return result;
  const Error said = result.error().Within("ask the service at " + socket_path);
  if (reached && said.code() == Code::kTimeout) {
    return Error(said.code(), said.text() +
                                  ": is its process stopped, or busy? headracectl doctor --probe "
                                  "says which part does not answer");
  }
  if (reached) return said;
  return Error(said.code(), said.text() +
                                ": is headraced running there? --socket or HEADRACE_SOCKET "
                                "names its socket");
}

template <typename Answer>
Result<Answer> NotEnded() {
  return Error(Code::kInternal, "the conversation did not end");
}

Status StatusOf(std::uint8_t code, const std::string& text) {
  if (code == 0) return {};
  return Refused(code, text);
}

// A call that is answered with a code and a text; `call(admin)` sends it.
template <typename Call>
Status Ask(const std::string& socket_path, TimeNs timeout_ns, Call&& call) {
  Result<bool> result = NotEnded<bool>();
  const Result<bool> asked =
      Talk(socket_path, timeout_ns, result, [&](schema::Admin::Client admin) {
        return call(kj::mv(admin)).then([&result](auto&& answer) {
          const Status status = StatusOf(answer.getCode(), answer.getText().cStr());
          result = status ? Result<bool>(true) : Result<bool>(status.error());
        });
      });
  if (!asked) return asked.error();
  return {};
}

// As setPolicy and steer take it.
std::int64_t OwnerValue(const JobReference& job) {
  return job.owner ? std::int64_t{*job.owner} : -1;
}

}  // namespace

std::uint32_t ProtocolVersion() { return schema::PROTOCOL_VERSION; }

Result<PingAnswer> Ping(const std::string& socket_path, TimeNs timeout_ns) {
  Result<PingAnswer> result = NotEnded<PingAnswer>();
  const TimeNs asked_ns = MonotonicNow();
  return Talk(socket_path, timeout_ns, result, [asked_ns, &result](schema::Admin::Client admin) {
    return admin.pingRequest().send().then([asked_ns, &result](auto&& answer) {
      result = PingAnswer{.dispatch_ns = answer.getDispatchNs(),
                          .round_trip_ns = MonotonicNow() - asked_ns};
    });
  });
}

Result<std::string> Configuration(const std::string& socket_path, TimeNs timeout_ns) {
  Result<std::string> result = NotEnded<std::string>();
  return Talk(socket_path, timeout_ns, result, [&result](schema::Admin::Client admin) {
    return admin.describeRequest().send().then([&result](auto&& answer) {
      result = std::string(answer.getDescription().getConfig().cStr());
    });
  });
}

Status SetPolicy(const std::string& socket_path, const JobReference& job, const std::string& policy,
                 TimeNs timeout_ns) {
  return Ask(socket_path, timeout_ns, [&](schema::Admin::Client admin) {
    auto request = admin.setPolicyRequest();
    request.setJob(job.name.c_str());
    request.setOwner(OwnerValue(job));
    request.setPolicy(policy.c_str());
    return request.send();
  });
}

Status Steer(const std::string& socket_path, const JobReference& job, SteeringKind kind,
             std::uint64_t value, TimeNs timeout_ns, bool forced) {
  return Ask(socket_path, timeout_ns, [&](schema::Admin::Client admin) {
    auto request = admin.steerRequest();
    request.setJob(job.name.c_str());
    request.setOwner(OwnerValue(job));
    request.getSteering().setKind(static_cast<std::uint8_t>(kind));
    request.getSteering().setValue(value);
    request.getSteering().setForced(forced);
    return request.send();
  });
}

Result<ProbeAnswer> Probe(const std::string& socket_path, TimeNs timeout_ns) {
  Result<ProbeAnswer> result = NotEnded<ProbeAnswer>();
  return Talk(socket_path, timeout_ns, result, [&result](schema::Admin::Client admin) {
    return admin.probeRequest().send().then([&result](auto&& answer) {
      ProbeAnswer probed{.dispatch_ns = answer.getDispatchNs(), .lanes = {}, .parts = {}};
      for (const schema::LaneProbe::Reader lane : answer.getLanes()) {
        probed.lanes.push_back({.name = lane.getName().cStr(),
                                .answered = lane.getAnswered(),
                                .ns = lane.getNs(),
                                .status = StatusOf(lane.getCode(), lane.getText().cStr())});
      }
      for (const schema::PartProbe::Reader part : answer.getParts()) {
        probed.parts.push_back(
            {.name = part.getName().cStr(), .answered = part.getAnswered(), .ns = part.getNs()});
      }
      result = std::move(probed);
    });
  });
}

Result<DrainBegun> DrainService(const std::string& socket_path, TimeNs deadline_ns,
                                TimeNs timeout_ns) {
  Result<DrainBegun> result = NotEnded<DrainBegun>();
  return Talk(socket_path, timeout_ns, result, [&result, deadline_ns](schema::Admin::Client admin) {
    return admin.describeRequest().send().then(
        [&result, deadline_ns, admin](auto&& described) mutable {
          auto request = admin.drainRequest();
          request.setDeadlineMs(static_cast<std::uint64_t>(deadline_ns / kMillisecond));
          const std::int32_t pid = described.getDescription().getPid();
          return request.send().then([&result, pid](auto&& answer) {
            if (answer.getCode() != 0) {
              result = Refused(answer.getCode(), answer.getText().cStr());
              return;
            }
            DrainBegun begun{.pid = pid, .sessions = answer.getSessions(), .waits = {}};
            for (const auto job : answer.getWaits()) begun.waits.emplace_back(job.cStr());
            result = std::move(begun);
          });
        });
  });
}

Result<std::vector<PeerProbe>> Peers(const std::string& socket_path, TimeNs timeout_ns) {
  Result<std::vector<PeerProbe>> result = NotEnded<std::vector<PeerProbe>>();
  return Talk(socket_path, timeout_ns, result, [&result](schema::Admin::Client admin) {
    return admin.peersRequest().send().then([&result](auto&& answer) {
      std::vector<PeerProbe> peers;
      for (const schema::PeerProbe::Reader peer : answer.getPeers()) {
        peers.push_back({.name = peer.getName().cStr(),
                         .address = peer.getAddress().cStr(),
                         .leads = peer.getLeads(),
                         .connected = peer.getConnected(),
                         .why = peer.getWhy().cStr(),
                         .refused = peer.getRefused(),
                         .round_trip_ns = peer.getRoundTripNs(),
                         .clock_offset_ns = peer.getClockOffsetNs()});
      }
      result = std::move(peers);
    });
  });
}

Result<std::vector<PeerStep>> TryPeer(const std::string& socket_path, const std::string& address,
                                      TimeNs timeout_ns) {
  Result<std::vector<PeerStep>> result = NotEnded<std::vector<PeerStep>>();
  return Talk(socket_path, timeout_ns, result, [&](schema::Admin::Client admin) {
    auto request = admin.tryPeerRequest();
    request.setAddress(address.c_str());
    return request.send().then([&result](auto&& answer) {
      if (answer.getCode() != 0) {
        result = Refused(answer.getCode(), answer.getText().cStr());
        return;
      }
      std::vector<PeerStep> steps;
      for (const schema::PeerStep::Reader step : answer.getSteps()) {
        steps.push_back({.name = step.getName().cStr(),
                         .found = step.getFound().cStr(),
                         .status = StatusOf(step.getCode(), step.getText().cStr())});
      }
      result = std::move(steps);
    });
  });
}

}  // namespace headrace::ctl
