// The plan: the immutable answer to "how does one iteration move?"
//
// Blocks stand in dispatch order with their contents and predicted times, counted in seconds from
// the start of the backward pass. Every node of a job holds the same plan; canonical.h gives the
// bytes and the hash that prove it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ipc/base/codec_cost.h"
#include "ipc/base/policies.h"
#include "service/plan/choice.h"
#include "service/plan/draft.h"

namespace headrace::plan {

struct PlannedBlock {
  std::vector<TensorRange> ranges;
  std::uint64_t bytes = 0;
  double begin_s = 0;                        // first stage
  double end_s = 0;                          // last stage
  Collective kind = Collective::kAllReduce;  // as in a draft

  friend bool operator==(const PlannedBlock&, const PlannedBlock&) = default;
};

// What a plan was made for, so that people can hold it against what they see.
struct Assumptions {
  double backward_s = 0;  // T_B
  double forward_s = 0;   // T_F
  // What a block of m bytes costs at the slowest stage of its route: startup_s + s_per_byte * m.
  double startup_s = 0;
  double s_per_byte = 0;

  friend bool operator==(const Assumptions&, const Assumptions&) = default;
};

// Neighbours in forward order whose sums cross between nodes in the same codec, which is not none.
struct CodecRun {
  Codec codec = Codec::kNone;
  std::uint32_t first = 0;  // tensor
  std::uint32_t count = 0;

  std::uint64_t end() const { return std::uint64_t{first} + count; }
  friend bool operator==(const CodecRun&, const CodecRun&) = default;
};

// The codecs of tensors 0, 1, ... as the fewest runs.
std::vector<CodecRun> CodecRunsOf(std::span<const Codec> codecs);

// An iteration without the codecs that a plan has the choice of, and with the best of them; without
// any, and with those that it must use, where it has no choice: then that is for people only.
struct CodecVerdict {
  CodecCost cost{};   // of the codec that most gradients would have; kNone: nothing to compare
  bool pays = false;  // where there was a choice: the plan uses it
  double plain_s = 0;
  double coded_s = 0;

  bool exists() const { return cost.codec != Codec::kNone; }
  friend bool operator==(const CodecVerdict&, const CodecVerdict&) = default;
};

struct Plan {
  std::uint32_t version = 1;  // counts the plans of one job
  Policy policy = Policy::kExact;
  bool barrier = false;             // the forward pass waits for the last block
  std::uint32_t in_flight_max = 0;  // blocks begun and not ended; 0 = no limit
  // The iteration time: for one set of times, or the mean over recorded iterations (choice). That
  // one has the whole iteration in it, with what the loop does between its passes.
  double predicted_s = 0;
  double lower_bound_s = 0;  // no plan on these lanes is faster
  Assumptions made_for;
  Choice choice{};
  std::vector<CodecRun> codecs{};  // as CodecRunsOf has them; other tensors cross as they are
  CodecVerdict verdict{};
  std::vector<PlannedBlock> blocks;

  friend bool operator==(const Plan&, const Plan&) = default;
};

Plan Finish(Policy policy, const Draft& draft, const Timetable& table, double lower_bound_s);
Draft DraftOf(const Plan& plan);
Codec CodecOf(const Plan& plan, std::uint32_t tensor);
// The codec of each of so many tensors, as Workload::codecs.
std::vector<Codec> CodecsOf(const Plan& plan, std::size_t tensors_count);
bool HasHalves(const Plan& plan);

// Whether the blocks hold every byte of every tensor exactly once, cut between elements only, and
// no block is empty or claims another size than its ranges have. Of halves the all-gathers count,
// and reduce-scatters that stand before all of them hold the same bytes.
Status CheckCoverage(const Plan& plan, const Workload& work);

}  // namespace headrace::plan
