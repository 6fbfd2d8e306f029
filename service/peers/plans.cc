#include "service/peers/plans.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "service/loop/text.h"

namespace headrace::service {

Plans::Plans(const PeerOptions& options, const PeersPorts& ports, Peers& peers, Outbox& outbox)
    : ports_(ports),
      peers_(peers),
      outbox_(outbox),
      local_({.node_name = options.node_name,
              .policy = options.policy,
              .forming_ns = options.forming_ns}),
      tasks_(*this),
      alarm_(peers.timer(), tasks_, [this](TimeNs now) {
        local_.Expire(now);
        Act();
      }) {}

void Plans::taskFailed(kj::Exception&& exception) {
  ports_.log.error("plans: {}", CauseOf(exception));
}

void Plans::RankAttached(const SessionIdentity& identity) {
  if (!identity.rendezvous.empty()) return;
  local_.RankAttached(identity);
  Act();
}

void Plans::RankEnded(const SessionIdentity& identity) {
  if (!identity.rendezvous.empty()) return;
  local_.RankEnded(identity);
  Act();
}

Status Plans::Check(const HandInLayout& message) const {
  const SessionIdentity& identity = message.identity;
  if (!identity.rendezvous.empty()) {
    return peers_.follower().CheckLayout(identity.job, identity.rank, *message.layout,
                                         message.policy);
  }
  return local_.CheckLayout(identity.job, identity.rank, *message.layout, message.policy);
}

Status Plans::HandIn(const HandInLayout& message) {
  const SessionIdentity& identity = message.identity;
  if (Status status = Check(message); !status) {
    LayoutRefused(identity, status.error());
    return status;
  }
  // Before what follows from it, and before the client may post by it.
  if (!outbox_.empty() ||
      !ports_.dispatch.Send(
          SetLayout{.session = identity.id, .first = message.first, .layout = message.layout})) {
    return Error(Code::kBusy, "the service is behind with its messages: try again");
  }
  if (!identity.rendezvous.empty()) {
    peers_.LayoutSet(identity, message.layout, message.policy);
  } else {
    local_.LayoutSet(identity.job, identity.rank, message.layout, message.policy);
    Act();
  }
  return {};
}

void Plans::LayoutRefused(const SessionIdentity& identity, const Error& error) {
  if (error.code() != Code::kMismatch) return;
  if (!identity.rendezvous.empty()) {
    return peers_.Take(JobBroken{.job = identity.job, .code = error.code(), .cause = error.text()});
  }
  SendToDispatch({JobFailed{.job = identity.job, .code = error.code(), .cause = error.text()}},
                 ports_, outbox_);
}

void Plans::Want(JobId job, plan::Policy policy) {
  local_.Want(job, policy);
  Act();
}

void Plans::Take(const PlanMade& message) {
  if ((message.token & kLocalPlanToken) == 0) return peers_.PlanCame(message);
  local_.Take(message);
  Act();
}

void Plans::Act() {
  for (const LocalAction& action : local_.TakeActions()) {
    if (const auto* dispatch = std::get_if<ToDispatch>(&action)) {
      SendToDispatch(*dispatch, ports_, outbox_);
    } else {
      std::visit([this](const auto& each) { outbox_.Send(ports_.watch, each); },
                 std::get<ToWatch>(action).message);
    }
  }
  alarm_.SetFor(local_.NextDeadline());
}

}  // namespace headrace::service
