// What makes the drafts of plans: a function for each policy.
#pragma once

#include "ipc/base/policies.h"
#include "service/plan/draft.h"
#include "service/plan/route.h"
#include "service/plan/workload.h"

namespace headrace::plan {

// Each policy's function has the policy's name and stands in a file of its own or of its kind, with
// the paper that describes it. `bound_s` is a lower bound of the iteration time: who has reached it
// may stop searching.
#define HEADRACE_POLICY(number, function, name) \
  Draft function(const Workload& work, const Route& route, double bound_s);
HEADRACE_POLICIES(HEADRACE_POLICY)
#undef HEADRACE_POLICY

Draft MakeDraft(Policy policy, const Workload& work, const Route& route, double bound_s);

}  // namespace headrace::plan
