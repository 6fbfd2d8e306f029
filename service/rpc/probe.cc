#include "service/rpc/probe.h"

#include <fmt/format.h>
#include <kj/debug.h>

#include <algorithm>
#include <array>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::service {

namespace {

// By ProbedPart.
constexpr std::array<const char*, 3> kPartNames = {"peers", "watch", "mapping"};

}  // namespace

Probe::Probe(Inboxes inboxes, std::vector<std::string> lanes, kj::Timer& timer,
             RequestTokens& tokens)
    : inboxes_(inboxes), lanes_(std::move(lanes)), timer_(timer), tokens_(tokens) {}

kj::Promise<ProbeAnswer> Probe::Ask(Asker asker) {
  const std::size_t kept = asker == Asker::kService ? 1 : 0;
  if (waiting_.size() >= kProbesWaitingMax + kept) {
    return KJ_EXCEPTION(OVERLOADED, "too many probes wait for the same answer");
  }
  auto pair = kj::newPromiseAndFulfiller<ProbeAnswer>();
  waiting_.push_back(kj::mv(pair.fulfiller));
  if (token_ == 0) Begin();
  return kj::mv(pair.promise);
}

void Probe::Begin() {
  HR_CHECK(token_ == 0, token_);
  token_ = tokens_.Next();
  asked_ns_ = MonotonicNow();
  answer_ = {};
  for (const std::string& lane : lanes_) answer_.lanes.push_back({.name = lane});
  for (const char* part : kPartNames) answer_.parts.push_back({.name = part});
  const bool sent = inboxes_.peers.Send(Ping{token_}) && inboxes_.watch.Send(Ping{token_}) &&
                    inboxes_.mapping.Send(Ping{token_}) && inboxes_.dispatch.Send(Ping{token_});
  if (!sent) return Finish();
  // The one before has either fired or is of no use any more.
  deadline_ = timer_.afterDelay(kProbeTimeout * kj::NANOSECONDS)
                  .then([this, token = token_] {
                    if (token == token_) Finish();
                  })
                  .eagerlyEvaluate(nullptr);
}

void Probe::Handle(const Pong& pong) {
  if (pong.token != token_) return;
  answer_.dispatch_ns = MonotonicNow() - asked_ns_;
  while (answer_.lanes.size() < pong.lanes_count) {
    answer_.lanes.push_back({.name = fmt::format("number {}", answer_.lanes.size())});
  }
  FinishIfComplete();
}

void Probe::Handle(const LaneAnswered& answer) {
  if (answer.token != token_ || answer.lane >= answer_.lanes.size()) return;
  LaneAnswer& lane = answer_.lanes[answer.lane];
  HR_CHECK(!lane.answered, lane.name, answer.token);
  lane.answered = true;
  lane.ns = MonotonicNow() - asked_ns_;
  lane.status = answer.status;
  FinishIfComplete();
}

void Probe::Handle(const PartAnswered& answer) {
  if (answer.token != token_) return;
  HR_CHECK(static_cast<std::size_t>(answer.part) < answer_.parts.size(),
           static_cast<int>(answer.part));
  PartAnswer& part = answer_.parts[static_cast<std::size_t>(answer.part)];
  HR_CHECK(!part.answered, part.name, answer.token);
  part.answered = true;
  part.ns = MonotonicNow() - asked_ns_;
  FinishIfComplete();
}

void Probe::FinishIfComplete() {
  const auto answered = [](const auto& each) { return each.answered; };
  const bool all = std::all_of(answer_.lanes.begin(), answer_.lanes.end(), answered) &&
                   std::all_of(answer_.parts.begin(), answer_.parts.end(), answered);
  if (all && answer_.dispatch_ns >= 0) Finish();
}

void Probe::Finish() {
  HR_CHECK(token_ != 0 && waiting_.size() <= kProbesWaitingMax + 1, waiting_.size());
  token_ = 0;
  for (auto& each : std::exchange(waiting_, {})) each->fulfill(kj::cp(answer_));
}

}  // namespace headrace::service
