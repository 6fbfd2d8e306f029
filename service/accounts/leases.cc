#include "service/accounts/leases.h"

#include <fmt/format.h>

#include <algorithm>

#include "ipc/base/check.h"

namespace headrace::service {

Result<SessionIdentity> Leases::Open(LeaseRequest request, ipc::Channel channel,
                                     UniqueFd doorbell) {
  request.id = SessionId{++sessions_opened_};
  if (Status status = quotas_.CheckSession(request.uid); !status) {
    CountRefusal();
    return status.error();
  }
  const Result<RankSlot> slot = ranks_.Join({.job = request.job_name,
                                             .rank = request.rank,
                                             .world_size = request.world_size,
                                             .rendezvous = request.rendezvous,
                                             .uid = request.uid,
                                             .pid = request.pid,
                                             .session = request.id,
                                             .after_epoch = request.after_epoch,
                                             .members_hash = request.members_hash});
  if (!slot) {
    if (slot.error().code() == Code::kExhausted) CountRefusal();
    return slot.error();
  }
  request.job = slot->job;
  request.epoch = slot->epoch;
  auto session = std::make_unique<Session>(request, std::move(channel), std::move(doorbell));
  if (!dispatch_.Send(OpenSession{std::move(session)})) {
    ranks_.Withdraw(request.id);
    return Error(Code::kBusy, "the service is behind with its messages: try again");
  }
  quotas_.Open(request.id, request.uid);
  HR_CHECK(!leases_.contains(request.id), request.id.value);
  leases_.emplace(request.id, Lease{.identity = request, .ended = {}});
  ReportEvent(Code::kOk, request.job,
              fmt::format("job {}: rank {} of {} attached (pid {}, uid {})", request.job_name,
                          request.rank, request.world_size, request.pid, request.uid),
              request.uid);
  on_used_();
  on_opened_(request);
  return request;
}

void Leases::End(SessionId session, bool orderly, Code code, const std::string& cause,
                 bool exited) {
  const auto found = leases_.find(session);
  if (found == leases_.end() || !found->second.ended) return;
  found->second.ended = Error(code, "the session has ended: " + cause);
  quotas_.Close(session);
  on_used_();
  const SessionIdentity& identity = found->second.identity;
  ReportEvent(orderly ? Code::kOk : code, identity.job,
              fmt::format("job {}: rank {} (pid {}) {}", identity.job_name, identity.rank,
                          identity.pid, cause),
              identity.uid);
  CloseSession close{.session = session, .orderly = orderly, .cause = cause, .exited = exited};
  on_ended_(identity, close);
  // In order: what could not be sent before goes first.
  if (!Flush() || !SendClose(close)) {
    unsent_.push_back(std::move(close));
    on_unsent_();
  }
}

Status Leases::ReserveMemory(SessionId session, std::uint64_t bytes, std::string_view what) {
  Status status = quotas_.ReserveMemory(session, bytes, what);
  if (!status) CountRefusal();
  on_used_();
  return status;
}

void Leases::ReleaseMemory(SessionId session, std::uint64_t bytes) {
  quotas_.ReleaseMemory(session, bytes);
  on_used_();
}

Status Leases::ReserveSegment(SessionId session, std::uint64_t bytes) {
  Status status = quotas_.ReserveSegment(session, bytes);
  if (!status) CountRefusal();
  on_used_();
  return status;
}

void Leases::OnDiscarded(SessionId session) {
  quotas_.Discard(session);
  on_used_();
}

void Leases::ReleaseSegment(SessionId session, std::uint64_t bytes) {
  quotas_.ReleaseSegment(session, bytes);
  on_used_();
}

std::vector<std::uint32_t> Leases::Users() const {
  std::vector<std::uint32_t> users;
  for (const auto& [uid, usage] : quotas_.usages()) users.push_back(uid);
  return users;
}

void Leases::Describe(ipc::UserRow& row) const {
  const auto usage = quotas_.usages().find(row.uid);
  if (usage != quotas_.usages().end()) {
    row.sessions = usage->second.sessions;
    row.memory_bytes = usage->second.memory;
  }
  row.memory_max = quotas_.MemoryLimit(row.uid);
  const RankTable::Share share = ranks_.ShareOf(row.uid);
  row.jobs = share.jobs;
  row.jobs_max = share.jobs_max;
  row.sessions_max = share.ranks_max;
  if (const std::uint64_t limit = quotas_.SessionLimit(); limit != 0) {
    row.sessions_max = std::min(row.sessions_max, limit);
  }
}

// What dispatch has no room for goes with the next.
void Leases::CountRefusal() {
  ++refusals_uncounted_;
  if (dispatch_.Send(QuotaRefused{refusals_uncounted_})) refusals_uncounted_ = 0;
}

void Leases::FailJob(JobId job, Code code, const std::string& cause) {
  if (const auto failed = ranks_.FailJob(job, cause); failed) {
    const auto& [name, uid] = *failed;
    ReportEvent(code, job, fmt::format("job {} has failed: {}", name, cause), uid);
  }
}

void Leases::EndAll(Code code, const std::string& cause) {
  std::vector<SessionId> open;
  for (const auto& [id, lease] : leases_) {
    if (lease.ended) open.push_back(id);
  }
  for (SessionId id : open) End(id, true, code, cause);
}

Status Leases::Check(SessionId session) const {
  const auto found = leases_.find(session);
  if (found == leases_.end()) return Error(Code::kNotFound, "the session has ended");
  return found->second.ended;
}

const SessionIdentity* Leases::Find(SessionId session) const {
  const auto found = leases_.find(session);
  return found == leases_.end() || !found->second.ended ? nullptr : &found->second.identity;
}

std::vector<SessionId> Leases::SessionsOf(JobId job) const {
  std::vector<SessionId> sessions;
  for (const auto& [id, lease] : leases_) {
    if (lease.ended && lease.identity.job == job) sessions.push_back(id);
  }
  return sessions;
}

std::vector<SessionId> Leases::OtherJobsOf(const SessionIdentity& identity) const {
  std::vector<SessionId> sessions;
  if (!identity.pid_is_known) return sessions;
  for (const auto& [id, lease] : leases_) {
    const SessionIdentity& other = lease.identity;
    const bool is_same = other.pid_is_known && other.pid == identity.pid &&
                         other.uid == identity.uid && other.job != identity.job;
    if (lease.ended && is_same) sessions.push_back(id);
  }
  return sessions;
}

std::vector<Leases::OpenJob> Leases::OpenJobs() const {
  std::map<JobId, OpenJob> jobs;
  for (const auto& [id, lease] : leases_) {
    if (!lease.ended) continue;
    OpenJob& job = jobs[lease.identity.job];
    job.job = lease.identity.job;
    job.name = lease.identity.job_name;
    job.uid = lease.identity.uid;
    job.can_reconnect = job.can_reconnect && lease.identity.can_reconnect;
  }
  std::vector<OpenJob> open;
  for (auto& [id, job] : jobs) open.push_back(std::move(job));
  return open;
}

void Leases::Forget(SessionId session) { leases_.erase(session); }

bool Leases::SendClose(const CloseSession& close) {
  if (!dispatch_.Send(close)) return false;
  ranks_.Depart(close.session, close.orderly, close.cause, close.exited);
  on_used_();
  return true;
}

bool Leases::Flush() {
  const auto refused =
      std::find_if(unsent_.begin(), unsent_.end(),
                   [this](const CloseSession& close) { return !SendClose(close); });
  unsent_.erase(unsent_.begin(), refused);
  return unsent_.empty();
}

void Leases::ReportEvent(Code code, JobId job, std::string text, std::optional<std::uint32_t> uid) {
  // A watch that is 65536 messages behind loses what people would read, nothing else.
  [[maybe_unused]] const bool taken =
      watch_.Send(Event{.code = code, .job = job, .text = std::move(text), .uid = uid});
}

}  // namespace headrace::service
