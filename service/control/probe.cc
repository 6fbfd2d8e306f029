#include "service/control/probe.h"

#include <fmt/format.h>
#include <kj/debug.h>

#include <algorithm>
#include <utility>

namespace headrace::service {

std::string ProbeAnswer::Complaint() const {
  const auto seconds = static_cast<double>(kProbeTimeout) / kSecond;
  if (dispatch_ns < 0) return fmt::format("dispatch did not answer within {} s", seconds);
  for (const LaneAnswer& lane : lanes) {
    if (!lane.answered) {
      return fmt::format("lane {} did not answer within {} s", lane.name, seconds);
    }
    if (!lane.status) return fmt::format("lane {}: {}", lane.name, lane.status.error().text());
  }
  return {};
}

Probe::Probe(Door<DispatchMessage>& dispatch, std::vector<std::string> lanes, kj::Timer& timer,
             Answers& answers)
    : dispatch_(dispatch), lanes_(std::move(lanes)), timer_(timer), answers_(answers) {}

kj::Promise<ProbeAnswer> Probe::Ask() {
  if (waiting_.size() >= kProbesWaitingMax) {
    return KJ_EXCEPTION(OVERLOADED, "too many probes wait for the same answer");
  }
  auto pair = kj::newPromiseAndFulfiller<ProbeAnswer>();
  waiting_.push_back(kj::mv(pair.fulfiller));
  if (token_ == 0) Begin();
  return kj::mv(pair.promise);
}

void Probe::Begin() {
  token_ = answers_.NextToken();
  asked_ns_ = MonotonicNow();
  answer_ = {};
  for (const std::string& lane : lanes_) answer_.lanes.push_back({.name = lane});
  if (!dispatch_.Send(Ping{token_})) return Finish();
  // The one before has either fired or is of no use any more.
  deadline_ = timer_.afterDelay(kProbeTimeout * kj::NANOSECONDS)
                  .then([this, token = token_] {
                    if (token == token_) Finish();
                  })
                  .eagerlyEvaluate(nullptr);
}

void Probe::Take(const Pong& pong) {
  if (pong.token != token_) return;
  answer_.dispatch_ns = MonotonicNow() - asked_ns_;
  while (answer_.lanes.size() < pong.lanes_count) {
    answer_.lanes.push_back({.name = fmt::format("number {}", answer_.lanes.size())});
  }
  FinishIfComplete();
}

void Probe::Take(const LaneAnswered& answer) {
  if (answer.token != token_ || answer.lane >= answer_.lanes.size()) return;
  LaneAnswer& lane = answer_.lanes[answer.lane];
  lane.answered = true;
  lane.ns = MonotonicNow() - asked_ns_;
  lane.status = answer.status;
  FinishIfComplete();
}

void Probe::FinishIfComplete() {
  const bool all = std::all_of(answer_.lanes.begin(), answer_.lanes.end(),
                               [](const LaneAnswer& lane) { return lane.answered; });
  if (all && answer_.dispatch_ns >= 0) Finish();
}

void Probe::Finish() {
  token_ = 0;
  for (auto& each : std::exchange(waiting_, {})) each->fulfill(kj::cp(answer_));
}

}  // namespace headrace::service
