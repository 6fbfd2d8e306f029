#include "service/rpc/admin.h"

#include <fmt/format.h>
#include <kj/debug.h>
#include <unistd.h>

#include "ipc/schema/client.capnp.h"
#include "service/cluster/setting_changes.h"

namespace headrace::service {
namespace {

constexpr TimeNs kPingTimeout = kSecond;
constexpr std::size_t kAddressSizeMax = 300;
constexpr std::uint64_t kDrainDeadlineMaxMs = 24ULL * 3600 * 1000;

}  // namespace

kj::Promise<void> Admin::describe(DescribeContext context) {
  auto description = context.getResults().initDescription();
  description.setVersion(ports_.version);
  description.setProtocolVersion(schema::PROTOCOL_VERSION);
  description.setPid(::getpid());
  description.setConfig(ports_.config_text);
  return kj::READY_NOW;
}

kj::Promise<void> Admin::ping(PingContext context) {
  const TimeNs asked_ns = MonotonicNow();
  // evalLast runs when everything else that rpc has to do now is done: that is its time.
  return kj::evalLast([this, context, asked_ns]() mutable -> kj::Promise<void> {
    const TimeNs sent_ns = MonotonicNow();
    return ports_.timer.timeoutAfter(kPingTimeout * kj::NANOSECONDS, ports_.dispatch.Reach())
        .then([context, asked_ns, sent_ns](Pong) mutable {
          context.getResults().setControlNs(sent_ns - asked_ns);
          context.getResults().setDispatchNs(MonotonicNow() - sent_ns);
        });
  });
}

std::optional<std::uint32_t> Admin::ReadOwner(std::int64_t owner) {
  if (owner < 0 || owner > UINT32_MAX) return std::nullopt;
  return static_cast<std::uint32_t>(owner);
}

template <typename Context>
kj::Promise<void> Admin::Change(Context context, ChangeSetting change, const char* what) {
  change.uid = client_->process.uid;
  return ports_.peers.Ask(std::move(change)).then([context, what](const Status& status) mutable {
    if (status) return;
    context.getResults().setCode(static_cast<std::uint8_t>(status.code()));
    context.getResults().setText(status.error().Within(what).text());
  });
}

kj::Promise<void> Admin::setPolicy(SetPolicyContext context) {
  constexpr const char* kWhat = "set policy";
  const auto job = context.getParams().getJob();
  const auto policy = context.getParams().getPolicy();
  Result<std::optional<plan::Policy>> wanted = ReadPolicyName({policy.begin(), policy.size()});
  if (wanted.ok() && !*wanted) wanted = Error(Code::kInvalidArgument, "no policy was named");
  if (!wanted) {
    context.getResults().setCode(static_cast<std::uint8_t>(wanted.error().code()));
    context.getResults().setText(wanted.error().Within(kWhat).text());
    return kj::READY_NOW;
  }
  return Change(context,
                {.job = {job.begin(), job.size()},
                 .owner = ReadOwner(context.getParams().getOwner()),
                 .setting = **wanted},
                kWhat);
}

kj::Promise<void> Admin::steer(SteerContext context) {
  constexpr const char* kWhat = "steer";
  const auto job = context.getParams().getJob();
  const auto asked = context.getParams().getSteering();
  if (Status status = CheckSteering(asked.getKind(), asked.getValue()); !status) {
    context.getResults().setCode(static_cast<std::uint8_t>(status.code()));
    context.getResults().setText(status.error().Within(kWhat).text());
    return kj::READY_NOW;
  }
  const Steering steering{.kind = static_cast<SteeringKind>(asked.getKind()),
                          .value = asked.getValue(),
                          .uid = client_->process.uid,
                          .node = {},
                          .forced = asked.getForced()};
  return Change(context,
                {.job = {job.begin(), job.size()},
                 .owner = ReadOwner(context.getParams().getOwner()),
                 .setting = steering},
                kWhat);
}

kj::Promise<void> Admin::drain(DrainContext context) {
  const std::uint32_t uid = client_->process.uid;
  const std::uint64_t deadline_ms = context.getParams().getDeadlineMs();
  Result<Shutdown::Moving> begun = Shutdown::Moving{};
  if (uid != 0 && uid != ::geteuid()) {
    begun = Error(Code::kPermissionDenied,
                  fmt::format("you are uid {}: root and the user of the service (uid {}) may drain "
                              "it; `headracectl drain JOB` ends a job of your own",
                              uid, ::geteuid()));
  } else if (deadline_ms > kDrainDeadlineMaxMs) {
    begun = Error(Code::kInvalidArgument, fmt::format("a deadline of {} ms: {} are the most",
                                                      deadline_ms, kDrainDeadlineMaxMs));
  } else {
    begun = ports_.shutdown.MoveJobs(uid, static_cast<TimeNs>(deadline_ms) * kMillisecond);
  }
  auto results = context.getResults();
  if (!begun) {
    results.setCode(static_cast<std::uint8_t>(begun.error().code()));
    results.setText(begun.error().Within("drain").text());
    return kj::READY_NOW;
  }
  results.setSessions(begun->sessions);
  auto waits = results.initWaits(static_cast<unsigned>(begun->waits.size()));
  for (unsigned i = 0; i < waits.size(); ++i) waits.set(i, begun->waits[i].c_str());
  return kj::READY_NOW;
}

kj::Promise<void> Admin::probe(ProbeContext context) {
  return ports_.probe.Ask().then([context](const ProbeAnswer& answer) mutable {
    auto results = context.getResults();
    results.setDispatchNs(answer.dispatch_ns);
    auto lanes = results.initLanes(static_cast<unsigned>(answer.lanes.size()));
    for (unsigned i = 0; i < lanes.size(); ++i) {
      const LaneAnswer& lane = answer.lanes[i];
      lanes[i].setName(lane.name);
      lanes[i].setAnswered(lane.answered);
      lanes[i].setNs(lane.ns);
      lanes[i].setCode(static_cast<std::uint8_t>(lane.status.code()));
      if (!lane.status) lanes[i].setText(lane.status.error().text());
    }
    auto parts = results.initParts(static_cast<unsigned>(answer.parts.size()));
    for (unsigned i = 0; i < parts.size(); ++i) {
      parts[i].setName(answer.parts[i].name);
      parts[i].setAnswered(answer.parts[i].answered);
      parts[i].setNs(answer.parts[i].ns);
    }
  });
}

kj::Promise<void> Admin::peers(PeersContext context) {
  return ports_.peers.List().then([context](const std::vector<PeerView>& views) mutable {
    auto list = context.getResults().initPeers(static_cast<unsigned>(views.size()));
    for (unsigned i = 0; i < list.size(); ++i) {
      const PeerView& view = views[i];
      list[i].setName(view.name);
      list[i].setAddress(view.address);
      list[i].setLeads(view.leads);
      list[i].setConnected(view.connected);
      list[i].setWhy(view.why);
      list[i].setRoundTripNs(view.round_trip_ns);
      list[i].setClockOffsetNs(view.clock_offset_ns);
      list[i].setRefused(view.refused);
    }
  });
}

// It makes the service connect to where somebody wants: for those who run it.
kj::Promise<void> Admin::tryPeer(TryPeerContext context) {
  const auto refuse = [&context](Code code, const std::string& text) {
    context.getResults().setCode(static_cast<std::uint8_t>(code));
    context.getResults().setText(text);
  };
  const auto address = context.getParams().getAddress();
  const std::uint32_t uid = client_->process.uid;
  if (uid != 0 && uid != ::geteuid()) {
    refuse(Code::kPermissionDenied,
           "try a peer: only root and uid " + std::to_string(::geteuid()) +
               ", which the service runs as, may have it connect somewhere");
    return kj::READY_NOW;
  }
  if (address.size() == 0 || address.size() > kAddressSizeMax) {
    refuse(Code::kInvalidArgument, "try a peer: an address is host:port, of at most " +
                                       std::to_string(kAddressSizeMax) + " bytes");
    return kj::READY_NOW;
  }
  return ports_.peers.Try({address.begin(), address.size()})
      .then([context](const std::vector<PeerStep>& steps) mutable {
        auto list = context.getResults().initSteps(static_cast<unsigned>(steps.size()));
        for (unsigned i = 0; i < list.size(); ++i) {
          list[i].setName(steps[i].name);
          list[i].setFound(steps[i].found);
          list[i].setCode(static_cast<std::uint8_t>(steps[i].status.code()));
          if (!steps[i].status) list[i].setText(steps[i].status.error().text());
        }
      });
}

}  // namespace headrace::service
