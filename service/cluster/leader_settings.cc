// What people on a node ask of a job, and what they should hear of it.
#include <fmt/format.h>

#include <algorithm>

#include "service/cluster/leader.h"

namespace headrace::service {

// All nodes hear of it in the order in which the leader did, whoever asks. A job that has not begun
// can only be ended: honest nodes keep what else people want of it until then.
void Leader::Handle(Job& job, Part& part, const RequestSteering& request) {
  if (part.server) return;
  Steering steering = request.steering;
  steering.node = NameOf(part);
  if (steering.kind == SteeringKind::kCancel) {
    return Fail(job, Code::kCancelled, DescribeEnd(steering));
  }
  if (job.stage < Stage::kStarting) return;
  if (steering.kind == SteeringKind::kDrain && !job.drain) job.drain = steering;
  for (const Part& other : job.parts) {
    if (other.server || other.forgot) continue;
    Steering announced = steering;
    if (other.node == part.node) announced.node.clear();
    Send(other, AnnounceSteering{.job = other.number, .steering = std::move(announced)});
  }
}

// A node says so of a job that was to be drained.
bool Leader::IsDrain(const Job& job, const ReportJobFailed& failed) const {
  return job.drain.has_value() && failed.code == CodeOfEnd(*job.drain);
}

// What is posted on one node may still move on another, so the job ends when all are done.
void Leader::OnNodeDrained(Job& job, Part& part) {
  part.drained = true;
  const bool all = std::all_of(job.parts.begin(), job.parts.end(), [](const Part& each) {
    return each.server || each.forgot || each.drained;
  });
  if (all) Fail(job, CodeOfEnd(*job.drain), DescribeEnd(*job.drain));
}

// A node that has started tells it when others have not said yet that they have: all were told to
// start, and hear this after it.
void Leader::Handle(Job& job, Part& part, const ReportRankLate& late, TimeNs now) {
  if (part.server || job.stage < Stage::kStarting || !part.late_reports.TryAcquire(now)) return;
  for (const Part& other : job.parts) {
    if (other.node == part.node || other.server || other.forgot) continue;
    Send(other,
         AnnounceRankLate{.job = other.number,
                          .text = fmt::format("reported by node {}: {}", NameOf(part), late.text)});
  }
}

void Leader::Handle(Job& job, Part& part, const ReportBlockHashed& hashed) {
  if (part.server || !job.verification) return;
  if (const auto difference = job.verification->Compare(part.place, hashed.hash); difference) {
    Fail(job, Code::kCorrupt, *difference);
  }
}

}  // namespace headrace::service
