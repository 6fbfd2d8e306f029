#include "service/plan/policies.h"

#include "ipc/base/check.h"

namespace headrace::plan {

Draft MakeDraft(Policy policy, const Workload& work, const Route& route,
                const DraftOptions& options) {
  switch (policy) {
#define HEADRACE_POLICY(number, function, name) \
  case Policy::k##function:                     \
    return function(work, route, options);
    HEADRACE_POLICIES(HEADRACE_POLICY)
#undef HEADRACE_POLICY
  }
  HR_CHECK(false, static_cast<int>(policy));
  return {};
}

}  // namespace headrace::plan
