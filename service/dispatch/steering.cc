// What people ask of a job, carried out.
#include <fmt/format.h>

#include "service/dispatch/flow.h"

namespace headrace::service {

void Flow::Steer(Job& job, const Steering& steering, TimeNs now) {
  if (steering.kind != Steering::Kind::kCancel) return;
  const std::string where =
      steering.node.empty() ? std::string() : fmt::format(" on node {}", steering.node);
  FailJob(job,
          {Code::kCancelled,
           fmt::format("job {} was cancelled by uid {}{}", job.name(), steering.uid, where)},
          Found::kHere, now);
}

}  // namespace headrace::service
