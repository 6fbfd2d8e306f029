// The requests of calls to dispatch, and other messages to it. The rpc thread only.
#pragma once

#include <kj/async.h>
#include <kj/debug.h>

#include <utility>

#include "ipc/base/check.h"
#include "ipc/base/result.h"
#include "service/actor/inbox.h"
#include "service/dispatch/messages.h"
#include "service/loop/outbox.h"
#include "service/loop/waiting.h"
#include "service/rpc/messages.h"
#include "service/rpc/request_tokens.h"

namespace headrace::service {

class DispatchRequests {
 public:
  // All outlive this.
  DispatchRequests(InboxWriter<DispatchMessage>& dispatch, RequestTokens& tokens, Outbox& outbox)
      : dispatch_(dispatch), tokens_(tokens), outbox_(outbox) {}

  // False when dispatch has no room.
  template <typename Message>
  [[nodiscard]] bool Send(Message message) {
    return dispatch_.Send(std::move(message));
  }
  // Likewise, and also when something else waits to be sent before.
  template <typename Message>
  [[nodiscard]] bool SendInOrder(Message message) {
    return outbox_.empty() && dispatch_.Send(std::move(message));
  }
  // Arrives, after all that was sent before.
  template <typename Message>
  void SendReliably(Message message) {
    outbox_.Send(dispatch_, std::move(message));
  }

  kj::Promise<Status> Remove(SessionId session, SegmentId segment) {
    const RequestToken token = tokens_.Next();
    if (!Send(RemoveSegment{.session = session, .segment = segment, .token = token})) {
      return Status(Behind());
    }
    return removed_.Add(token);
  }
  // Fails as OVERLOADED when dispatch has no room.
  kj::Promise<Pong> Reach() {
    const RequestToken token = tokens_.Next();
    if (!Send(Ping{token})) {
      return KJ_EXCEPTION(OVERLOADED, "dispatch is behind with its messages");
    }
    return pong_.Add(token);
  }

  void Handle(SegmentRemoved message) {
    HR_CHECK(tokens_.WasUsed(message.token), message.token);
    removed_.Fulfill(message.token, std::move(message.status));
  }
  void Handle(const Pong& message) {
    HR_CHECK(tokens_.WasUsed(message.token), message.token);
    pong_.Fulfill(message.token, message);
  }

 private:
  InboxWriter<DispatchMessage>& dispatch_;
  RequestTokens& tokens_;
  Outbox& outbox_;
  Waiting<Status> removed_;
  Waiting<Pong> pong_;
};

}  // namespace headrace::service
