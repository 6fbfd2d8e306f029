// A way through the data path and back: dispatch and every lane, without a side effect. For admins
// and for whoever asks whether the service is ready. Control's thread only.
//
// One round trip is under way at a time, however many ask: those who come while it is share its
// answer.
#pragma once

#include <kj/async.h>
#include <kj/timer.h>

#include <cstddef>
#include <string>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/result.h"
#include "service/actor/messages.h"
#include "service/control/answers.h"

namespace headrace::service {

inline constexpr TimeNs kProbeTimeout = kSecond;
inline constexpr std::size_t kProbesWaitingMax = 256;

struct LaneAnswer {
  std::string name;
  bool answered = false;  // within kProbeTimeout
  TimeNs ns = -1;         // until it had answered
  Status status{};        // that it answered with
};

struct ProbeAnswer {
  TimeNs dispatch_ns = -1;  // -1: it did not answer within kProbeTimeout
  std::vector<LaneAnswer> lanes;

  // Nothing when dispatch and all lanes have answered well; else who has not: "lane ucx0 did not
  // answer within 1 s".
  std::string Complaint() const;
};

class Probe {
 public:
  // All outlive this. `lanes` are the names of the lanes by their numbers.
  Probe(Door<DispatchMessage>& dispatch, std::vector<std::string> lanes, kj::Timer& timer,
        Answers& answers);

  // Resolves within kProbeTimeout, whatever the data path does. Fails as OVERLOADED when too many
  // wait already.
  kj::Promise<ProbeAnswer> Ask();

  // Of other round trips they are ignored.
  void Take(const Pong& pong);
  void Take(const LaneAnswered& answer);

 private:
  void Begin();
  void FinishIfComplete();
  void Finish();

  Door<DispatchMessage>& dispatch_;
  std::vector<std::string> lanes_;
  kj::Timer& timer_;
  Answers& answers_;
  RequestToken token_ = 0;  // of the round trip under way; 0: there is none
  TimeNs asked_ns_ = 0;
  ProbeAnswer answer_;
  std::vector<kj::Own<kj::PromiseFulfiller<ProbeAnswer>>> waiting_;
  kj::Promise<void> deadline_ = nullptr;
};

}  // namespace headrace::service
