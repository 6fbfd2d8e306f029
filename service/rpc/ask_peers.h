// Questions of a call to the peers actor, which answers on a thread of its own. The rpc thread
// only.
#pragma once

#include <kj/async.h>
#include <kj/debug.h>
#include <kj/timer.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "ipc/base/result.h"
#include "service/loop/outbox.h"
#include "service/plan/plan.h"
#include "service/rpc/desk.h"

namespace headrace::service {

inline constexpr TimeNs kPeersTimeout = 5 * kSecond;

inline Error Behind() {
  return Error(Code::kBusy, "the service is behind with its messages: try again");
}

// Sends CheckRank, HandInLayout, ChangeSetting or StopPeers and waits for the answer, but not for
// ever: an error then says that peers did not answer.
template <typename Request>
kj::Promise<Status> AskPeers(Desk& desk, Request request, TimeNs timeout_ns = kPeersTimeout) {
  const RequestToken token = request.token = desk.answers.NextToken();
  // What waits in the outbox comes first.
  if (!desk.outbox->empty() || !desk.peers.Send(std::move(request))) return Status(Behind());
  return desk.answers.answered.Add(token)
      .exclusiveJoin(desk.timer->afterDelay(timeout_ns * kj::NANOSECONDS).then([timeout_ns] {
        return Status(
            Error(Code::kTimeout, "the service's peers thread did not answer within " +
                                      std::to_string(timeout_ns / kMillisecond) +
                                      " ms: `headracectl doctor --probe` shows what stands still"));
      }))
      .attach(kj::defer([&desk, token] { desk.answers.answered.Drop(token); }));
}

// The policy of that name, nothing for an empty one, or which names there are.
Result<std::optional<plan::Policy>> ReadPolicyName(std::string_view name);

}  // namespace headrace::service
