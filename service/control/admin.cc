#include "service/control/admin.h"

#include <kj/debug.h>
#include <unistd.h>

#include "service/control/helm.h"
#include "service/control/peers/peers.h"
#include "service/control/probe.h"

namespace headrace::service {
namespace {

constexpr TimeNs kPingTimeout = kSecond;

}  // namespace

kj::Promise<void> Admin::describe(DescribeContext context) {
  auto description = context.getResults().initDescription();
  description.setVersion(desk_.options.version);
  description.setProtocolVersion(schema::PROTOCOL_VERSION);
  description.setPid(::getpid());
  description.setConfig(desk_.options.config_text);
  return kj::READY_NOW;
}

kj::Promise<void> Admin::ping(PingContext context) {
  const TimeNs asked_ns = MonotonicNow();
  // evalLast runs when everything else that control has to do now is done: that is its time.
  return kj::evalLast([this, context, asked_ns]() mutable -> kj::Promise<void> {
    const TimeNs sent_ns = MonotonicNow();
    const RequestToken token = desk_.answers.NextToken();
    auto pong = desk_.answers.pong.Add(token);
    if (!desk_.dispatch.Send(Ping{token})) {
      desk_.answers.pong.Drop(token);
      return KJ_EXCEPTION(OVERLOADED, "dispatch is behind with its messages");
    }
    return desk_.timer->timeoutAfter(kPingTimeout * kj::NANOSECONDS, kj::mv(pong))
        .then([context, asked_ns, sent_ns](Pong) mutable {
          context.getResults().setControlNs(sent_ns - asked_ns);
          context.getResults().setDispatchNs(MonotonicNow() - sent_ns);
        })
        .attach(kj::defer([this, token] { desk_.answers.pong.Drop(token); }));
  });
}

kj::Promise<void> Admin::setPolicy(SetPolicyContext context) {
  const auto job = context.getParams().getJob();
  const auto policy = context.getParams().getPolicy();
  const Status status = desk_.helm->SetPolicy({job.begin(), job.size()},
                                              {policy.begin(), policy.size()}, client_->peer.uid);
  if (status) return kj::READY_NOW;
  context.getResults().setCode(static_cast<std::uint8_t>(status.code()));
  context.getResults().setText(status.error().Within("set policy").text());
  return kj::READY_NOW;
}

kj::Promise<void> Admin::steer(SteerContext context) {
  const auto job = context.getParams().getJob();
  const auto steering = context.getParams().getSteering();
  const Status status = desk_.helm->Steer({job.begin(), job.size()}, steering.getKind(),
                                          steering.getValue(), client_->peer.uid);
  if (status) return kj::READY_NOW;
  context.getResults().setCode(static_cast<std::uint8_t>(status.code()));
  context.getResults().setText(status.error().Within("steer").text());
  return kj::READY_NOW;
}

kj::Promise<void> Admin::probe(ProbeContext context) {
  return desk_.probe->Ask().then([context](const ProbeAnswer& answer) mutable {
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
  });
}

kj::Promise<void> Admin::peers(PeersContext context) {
  const std::vector<PeerView> views = desk_.peers->View();
  auto list = context.getResults().initPeers(static_cast<unsigned>(views.size()));
  for (unsigned i = 0; i < list.size(); ++i) {
    const PeerView& view = views[i];
    list[i].setName(view.name);
    list[i].setAddress(view.address);
    list[i].setLeads(view.leads);
    list[i].setConnected(view.connected);
    list[i].setWhy(view.why);
    list[i].setRoundTripNs(view.round_trip.taken_ns);
    list[i].setClockOffsetNs(view.round_trip.offset_ns);
  }
  return kj::READY_NOW;
}

}  // namespace headrace::service
