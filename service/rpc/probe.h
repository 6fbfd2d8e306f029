// A round trip through every thread that a client depends on, without a side effect: peers, watch,
// mapping, dispatch and every lane. For admins and for readiness checks. The rpc thread only.
//
// One round trip is under way at a time: requests that come meanwhile share its answer.
#pragma once

#include <kj/async.h>
#include <kj/timer.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/result.h"
#include "service/actor/inbox.h"
#include "service/actor/probe_answer.h"
#include "service/actor/request.h"
#include "service/dispatch/messages.h"
#include "service/mapping/messages.h"
#include "service/peers/messages.h"
#include "service/rpc/messages.h"
#include "service/rpc/request_tokens.h"
#include "service/watch/messages.h"

namespace headrace::service {

inline constexpr std::size_t kProbesWaitingMax = 256;  // besides the service's own

class Probe {
 public:
  struct Inboxes {
    InboxWriter<DispatchMessage>& dispatch;
    InboxWriter<PeersMessage>& peers;
    InboxWriter<WatchMessage>& watch;
    InboxWriter<MappingMessage>& mapping;
    // One more actor: an inbox here, a ProbedPart, its name in kPartNames and its Ping in Begin().
  };

  // All outlive this. `lanes` are the names of the lanes by their numbers.
  Probe(Inboxes inboxes, std::vector<std::string> lanes, kj::Timer& timer, RequestTokens& tokens);

  // Resolves within kProbeTimeout, whatever the data path does. Fails as OVERLOADED when too many
  // wait already; there is always a place for the service itself, which asks once at a time.
  enum class Asker : std::uint8_t { kAnybody, kService };
  kj::Promise<ProbeAnswer> Ask(Asker asker = Asker::kAnybody);

  // Answers to other round trips are ignored.
  void Handle(const Pong& pong);
  void Handle(const LaneAnswered& answer);
  void Handle(const PartAnswered& answer);

 private:
  void Begin();
  void FinishIfComplete();
  void Finish();

  Inboxes inboxes_;
  std::vector<std::string> lanes_;
  kj::Timer& timer_;
  RequestTokens& tokens_;
  RequestToken token_ = 0;  // of the round trip under way; 0: there is none
  TimeNs asked_ns_ = 0;
  ProbeAnswer answer_;
  std::vector<kj::Own<kj::PromiseFulfiller<ProbeAnswer>>> waiting_;
  kj::Promise<void> deadline_ = nullptr;
};

}  // namespace headrace::service
