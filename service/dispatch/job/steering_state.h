// The requests of users for a job that are not yet in force: plain data inside Job, changed by
// commands.h and settings.h only.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <optional>

#include "ipc/base/clock.h"
#include "service/session/quorum.h"
#include "service/session/steering.h"

namespace headrace::service {

struct DrainState {
  Steering asked;
  // Nothing beyond these begins on this node; from the agreement on, what comes later is refused.
  std::uint64_t operations = UINT64_MAX;
  std::uint64_t iterations = UINT64_MAX;
  // Before the agreement: the furthest of the nodes that have said so, bit i for node i.
  std::uint64_t furthest_operation = 0;
  std::uint64_t furthest_iteration = 0;
  std::uint64_t operations_from = 0;
  std::uint64_t iterations_from = 0;
  bool agreed = false;
  bool done = false;  // everything up to there has ended here
};

struct SteeringState {
  // By kind: what waits for the next border. A later one takes the place of an earlier one.
  std::array<std::optional<Steering>, kSteeringKindsCount + 1> waiting;
  bool any_waiting = false;
  // Operations of a paused job beyond it do not begin.
  std::uint64_t paused_after = UINT64_MAX;
  // Deadlines stand still since then, from the request for a pause on; 0: they do not.
  TimeNs frozen_since_ns = 0;
  DrainState drain;
  std::uint64_t evicted = 0;     // bit r: rank r is
  WaitingApplicants applicants;  // as the job's leader says

  std::uint32_t EvictionsCount() const {
    return static_cast<std::uint32_t>(std::popcount(evicted));
  }
  bool paused() const { return paused_after != UINT64_MAX; }
  bool MayBegin(std::uint64_t operation) const {
    return operation <= paused_after && operation <= drain.operations;
  }
  bool MayBeginIteration(std::uint64_t iteration) const { return iteration <= drain.iterations; }
};

}  // namespace headrace::service
