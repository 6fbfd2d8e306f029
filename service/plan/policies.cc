#include "service/plan/policies.h"

#include "ipc/base/check.h"

namespace headrace::plan {

Draft MakeDraft(Policy policy, const Workload& work, const Route& route, double bound_s) {
  switch (policy) {
#define HEADRACE_POLICY(number, function, name) \
  case Policy::k##function:                     \
    return function(work, route, bound_s);
    HEADRACE_POLICIES(HEADRACE_POLICY)
#undef HEADRACE_POLICY
  }
  HR_CHECK(false, static_cast<int>(policy));
  return {};
}

}  // namespace headrace::plan
