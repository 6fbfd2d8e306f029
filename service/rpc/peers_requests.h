// The requests of calls to the peers actor, which answers on a thread of its own, and other
// messages to it. The rpc thread only.
#pragma once

#include <kj/async.h>
#include <kj/timer.h>

#include <string>
#include <utility>
#include <vector>

#include "ipc/base/check.h"
#include "ipc/base/clock.h"
#include "ipc/base/result.h"
#include "service/loop/outbox.h"
#include "service/loop/waiting.h"
#include "service/peers/messages.h"
#include "service/rpc/messages.h"
#include "service/rpc/request_tokens.h"

namespace headrace::service {

inline constexpr TimeNs kPeersTimeout = 5 * kSecond;

class PeersRequests {
 public:
  // All outlive this.
  PeersRequests(InboxWriter<PeersMessage>& peers, RequestTokens& tokens, Outbox& outbox,
                kj::Timer& timer)
      : peers_(peers), tokens_(tokens), outbox_(outbox), timer_(timer) {}

  // Sends CheckRank, HandInLayout, AskForming, ChangeSetting or StopPeers and waits for the answer,
  // but not for ever: an error then says that peers did not answer.
  template <typename Request>
  kj::Promise<Status> Ask(Request request, TimeNs timeout_ns = kPeersTimeout) {
    const RequestToken token = request.token = tokens_.Next();
    // What waits in the outbox comes first.
    if (!outbox_.empty() || !peers_.Send(std::move(request))) return Status(Behind());
    return Await(token, timeout_ns);
  }
  // For AskQuorum::client; used once.
  std::uint64_t NextClient() { return tokens_.Next(); }
  // Sends it and waits for its answer, which says kUnavailable when peers does not answer.
  kj::Promise<QuorumAnswered> Ask(AskQuorum request);
  // Fail as OVERLOADED when peers is behind, or did not answer.
  kj::Promise<std::vector<PeerView>> List();
  kj::Promise<std::vector<PeerStep>> Try(std::string address);

  // Arrives, after all that was sent before.
  template <typename Message>
  void SendReliably(Message message) {
    outbox_.Send(peers_, std::move(message));
  }
  // What comes back is of no use to anybody.
  void SendReliably(ChangeSetting message) {
    message.token = tokens_.Next();
    outbox_.Send(peers_, std::move(message));
  }

  void Handle(Answered message) {
    HR_CHECK(tokens_.WasUsed(message.token), message.token);
    answered_.Fulfill(message.token, std::move(message.status));
  }
  void Handle(PeersListed message) {
    HR_CHECK(tokens_.WasUsed(message.token), message.token);
    listed_.Fulfill(message.token, std::move(message.peers));
  }
  void Handle(QuorumAnswered message) {
    HR_CHECK(tokens_.WasUsed(message.token), message.token);
    const RequestToken token = message.token;
    quorums_.Fulfill(token, std::move(message));
  }
  void Handle(PeerTried message) {
    HR_CHECK(tokens_.WasUsed(message.token), message.token);
    tried_.Fulfill(message.token, std::move(message.steps));
  }

 private:
  kj::Promise<Status> Await(RequestToken token, TimeNs timeout_ns);

  InboxWriter<PeersMessage>& peers_;
  RequestTokens& tokens_;
  Outbox& outbox_;
  kj::Timer& timer_;
  Waiting<Status> answered_;
  Waiting<QuorumAnswered> quorums_;
  Waiting<std::vector<PeerView>> listed_;
  Waiting<std::vector<PeerStep>> tried_;
};

}  // namespace headrace::service
