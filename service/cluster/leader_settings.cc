#include "service/cluster/leader_settings.h"

#include <fmt/format.h>

#include <algorithm>

#include "ipc/base/check.h"

namespace headrace::service {

// All nodes receive it in the order in which the leader did, whoever asks. A job that has not begun
// can only be ended: honest nodes keep what else people want of it until then.
void LeaderSettings::Handle(Job& job, Participant& participant, const RequestSteering& request) {
  // Who waits for the job is the leader's to say.
  if (participant.server || request.steering.kind == SteeringKind::kApplicants) return;
  Steering steering = request.steering;
  steering.node = jobs_.NameOf(participant);
  if (steering.kind == SteeringKind::kCancel) {
    return jobs_.FailJob(job, Code::kCancelled, DescribeEnd(steering));
  }
  if (job.phase < Phase::kStarting) return;
  if (steering.kind == SteeringKind::kCompress) {
    // In plans, which say from which iteration on they hold.
    return plans_.SetCodec(job, ChoiceOfValue(steering.value).value_or(CodecChoice()));
  }
  if (steering.kind == SteeringKind::kDrain && !job.drain) job.drain = steering;
  for (const Participant& other : job.participants) {
    if (other.server || other.forgot) continue;
    // Who is slow is found where rank 0 is.
    const bool is_compared =
        steering.kind == SteeringKind::kOwnShare || steering.kind == SteeringKind::kRankState;
    if (is_compared && !other.ranks.contains(0)) continue;
    Steering announced = steering;
    if (other.node == participant.node) announced.node.clear();
    jobs_.Send(other, AnnounceSteering{.job = other.number, .steering = std::move(announced)});
  }
}

bool LeaderSettings::IsDrain(const Job& job, const ReportJobFailed& failed) {
  return job.drain.has_value() && failed.code == CodeOfEnd(*job.drain);
}

// What is posted on one node may still move on another, so the job ends when all are done.
void LeaderSettings::OnNodeDrained(Job& job, Participant& participant) {
  HR_CHECK(job.drain.has_value(), job.name);
  participant.drained = true;
  const bool all = std::all_of(
      job.participants.begin(), job.participants.end(),
      [](const Participant& each) { return each.server || each.forgot || each.drained; });
  if (all) jobs_.FailJob(job, CodeOfEnd(*job.drain), DescribeEnd(*job.drain));
}

// A node that has started reports it when others have not reported yet that they have: all were
// sent their start, and receive this after it.
void LeaderSettings::Handle(Job& job, Participant& participant, const ReportRankLate& late,
                            TimeNs now) {
  if (participant.server || job.phase < Phase::kStarting ||
      !participant.late_reports.TryAcquire(now))
    return;
  for (const Participant& other : job.participants) {
    if (other.node == participant.node || other.server || other.forgot) continue;
    jobs_.Send(other, AnnounceRankLate{.job = other.number,
                                       .text = fmt::format("reported by node {}: {}",
                                                           jobs_.NameOf(participant), late.text)});
  }
}

void LeaderSettings::Handle(Job& job, Participant& participant, const ReportBlockHashed& hashed) {
  if (participant.server || !job.verification) return;
  if (const auto difference = job.verification->Compare(participant.place, hashed.hash);
      difference) {
    jobs_.FailJob(job, Code::kCorrupt, *difference);
  }
}

}  // namespace headrace::service
