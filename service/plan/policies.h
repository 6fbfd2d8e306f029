// The functions that make the drafts of plans, one for each policy.
#pragma once

#include <cstdint>

#include "ipc/base/policies.h"
#include "service/plan/draft.h"
#include "service/plan/route.h"
#include "service/plan/workload.h"

namespace headrace::plan {

// What a person may set; a policy looks at what concerns it.
struct PolicySettings {
  // The size that a policy has: of us-byte's units, of partitions of bytescheduler, bytesched-fused
  // and p3, of ddp's, horovod's and dear's groups. 0: searched, or the default of what it is named
  // after.
  std::uint64_t unit_bytes = 0;
  std::uint32_t credits = 0;  // partitions of bytescheduler and bytesched-fused in flight
  double cycle_s = 0;         // of horovod
  bool barrier = false;       // the forward pass waits for the last block, whatever the policy
};

struct DraftOptions {
  double bound_s = 0;  // a lower bound of the iteration time: who has reached it may stop searching
  PolicySettings settings = {};
};

// What others must know of a policy before it has made a draft. No field has a default, so that
// none is forgotten; tests/unit/plan/policies_test.cc holds each against the drafts.
struct PolicyTraits {
  bool barrier;        // its forward pass waits for the last block
  bool sizes_by_cost;  // what bytes cost decides how large its blocks are
  bool halves;         // it may take all-reduces apart, where Route::halves lets it
  bool from_others;    // it takes the best of other policies' drafts
};

// Each policy's function and traits have the policy's name and stand in a file of its own or of its
// kind, with the paper that describes it.
#define HEADRACE_POLICY(number, function, name)                                          \
  Draft function(const Workload& work, const Route& route, const DraftOptions& options); \
  extern const PolicyTraits k##function##Traits;
HEADRACE_POLICIES(HEADRACE_POLICY)
#undef HEADRACE_POLICY

const PolicyTraits& TraitsOf(Policy policy);

Draft MakeDraft(Policy policy, const Workload& work, const Route& route,
                const DraftOptions& options);

}  // namespace headrace::plan
