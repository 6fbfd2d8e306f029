#include "service/accounts/rank_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "ipc/base/check.h"
#include "ipc/board_layout.h"
#include "service/session/session.h"
#include "service/session/start_text.h"
#include "transport/transport.h"

namespace headrace::service {
namespace {

constexpr std::size_t kRanksNamedMax = 8;
// This part of all rows is for root and the service's own user.
constexpr std::size_t kRowsKeptDivisor = 8;

}  // namespace

Status CheckJobName(std::string_view name) {
  if (name.empty() || name.size() > kJobNameMax) {
    return Error(Code::kInvalidArgument, fmt::format("the job's name has {} bytes, 1 to {} are "
                                                     "allowed",
                                                     name.size(), kJobNameMax));
  }
  const auto bad = std::find_if(name.begin(), name.end(),
                                [](char letter) { return letter <= ' ' || letter > '~'; });
  if (bad == name.end()) return {};
  return Error(Code::kInvalidArgument,
               fmt::format("the job's name has byte {:#04x} at {}: only printable ASCII without "
                           "blanks is allowed",
                           static_cast<unsigned char>(*bad), bad - name.begin()));
}

Status RankTable::CheckNumbers(const JoinRequest& request) {
  if (request.world_size == 0 || request.world_size > transport::kMembersMax) {
    return Error(Code::kInvalidArgument, fmt::format("world size {}, 1 to {} are supported",
                                                     request.world_size, transport::kMembersMax));
  }
  if (request.rank >= request.world_size) {
    return Error(Code::kInvalidArgument,
                 fmt::format("rank {} of a world of {}: ranks go from 0 to "
                             "{}",
                             request.rank, request.world_size, request.world_size - 1));
  }
  if (request.after_epoch > kAfterEpochMax) {
    return Error(Code::kInvalidArgument, fmt::format("after epoch {}: no job has come beyond {}",
                                                     request.after_epoch, kAfterEpochMax));
  }
  return {};
}

// "rank 0 (pid 12), rank 3 (pid 15)".
std::string RankTable::AttachedRanks(const Job& job) {
  std::vector<std::string> names;
  std::size_t attached = 0;
  for (const auto& [rank, entry] : job.ranks) {
    if (!entry.attached || ++attached > kRanksNamedMax) continue;
    names.push_back(fmt::format("rank {} (pid {})", rank, entry.pid));
  }
  if (attached > kRanksNamedMax) {
    names.push_back(fmt::format("{} more", attached - kRanksNamedMax));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

Status RankTable::CheckJoin(const JoinRequest& request, const Job& job) {
  if (!job.failure.empty()) {
    return Error(Code::kPeerLost,
                 fmt::format("job {} has failed ({}) and {} of it remains attached: it can begin "
                             "again when all of its ranks are gone",
                             request.job, job.failure, AttachedRanks(job)));
  }
  if (job.world_size != request.world_size) {
    return Error(Code::kMismatch,
                 fmt::format("rank {} (pid {}) says job {} has {} ranks, {} said {}", request.rank,
                             request.pid, request.job, request.world_size, AttachedRanks(job),
                             job.world_size));
  }
  if (job.rendezvous != request.rendezvous) {
    return Error(Code::kMismatch,
                 fmt::format("rank {} (pid {}) says job {} meets at \"{}\", {} said \"{}\"",
                             request.rank, request.pid, request.job, request.rendezvous,
                             AttachedRanks(job), job.rendezvous));
  }
  if (job.members_hash != request.members_hash) {
    return Error(Code::kAlreadyExists,
                 fmt::format("rank {} (pid {}) and {} follow different decisions on who is left "
                             "of job {}: they have to ask again",
                             request.rank, request.pid, AttachedRanks(job), request.job));
  }
  if (job.goes_on != (request.after_epoch != 0)) {
    return Error(Code::kMismatch,
                 fmt::format("rank {} (pid {}) {}, {} {}: ranks that go on after a reconnect and "
                             "ranks that begin are never one job: end all of them and begin anew",
                             request.rank, request.pid, DescribeStart(request.after_epoch != 0),
                             AttachedRanks(job), DescribeStart(job.goes_on)));
  }
  const auto taken = job.ranks.find(request.rank);
  if (taken == job.ranks.end()) return {};
  if (taken->second.attached) {
    return Error(Code::kAlreadyExists,
                 fmt::format("rank {} of job {} is attached already, as pid {}; refused is pid {}",
                             request.rank, request.job, taken->second.pid, request.pid));
  }
  return Error(
      Code::kAlreadyExists,
      fmt::format("rank {} of job {} has left it (pid {}) while {} remains attached: pid "
                  "{} can attach when all of its ranks are gone",
                  request.rank, request.job, taken->second.pid, AttachedRanks(job), request.pid));
}

Status RankTable::CheckRoom(const JoinRequest& request, bool opens_job) const {
  struct Rows {
    const char* name;
    std::size_t max;
    std::size_t taken;
    std::size_t own;
  };
  const auto found = uses_.find(request.uid);
  const Use use = found == uses_.end() ? Use{} : found->second;
  const Rows ranks{"ranks", ipc::kRankRowsMax, sessions_.size(), use.ranks};
  const Rows jobs{"jobs", ipc::kJobRowsMax, jobs_.size(), use.jobs};
  const bool shares = IsBounded(request.uid);
  std::vector<Rows> needed{ranks};
  if (opens_job) needed.push_back(jobs);
  for (const Rows& rows : needed) {
    if (rows.taken >= rows.max) {
      return Error(Code::kExhausted, fmt::format("{} {} are attached, more are not supported",
                                                 rows.taken, rows.name));
    }
    const std::size_t kept = rows.max / kRowsKeptDivisor;
    if (shares && rows.own + rows.taken + kept >= rows.max) {
      return Error(
          Code::kExhausted,
          fmt::format("uid {} has {} of the {} {} that this node can have, and shares the {} "
                      "that are free with other users: end one, or ask the operator to set "
                      "sessions_per_uid, which replaces this share",
                      request.uid, rows.own, rows.max, rows.name, rows.max - rows.taken));
    }
  }
  return {};
}

RankTable::Share RankTable::ShareOf(std::uint32_t uid) const {
  const auto found = uses_.find(uid);
  const Use use = found == uses_.end() ? Use{} : found->second;
  // As CheckRoom lets it come to: one more as long as the rows left are more than its own.
  const auto most = [bounded = IsBounded(uid)](std::size_t max, std::size_t taken,
                                               std::size_t own) {
    HR_CHECK(taken >= own, taken, own);
    const std::size_t others = taken - own;
    if (!bounded) return max - others;
    const std::size_t used = others + max / kRowsKeptDivisor;
    return std::max(own, used < max ? (max - used + 1) / 2 : 0);
  };
  return {.ranks = use.ranks,
          .ranks_max = most(ipc::kRankRowsMax, sessions_.size(), use.ranks),
          .jobs = use.jobs,
          .jobs_max = most(ipc::kJobRowsMax, jobs_.size(), use.jobs)};
}

Result<RankSlot> RankTable::Join(const JoinRequest& request) {
  if (Status status = CheckJobName(request.job); !status) return status.error();
  if (Status status = CheckNumbers(request); !status) return status.error();
  const bool decided = request.members_hash != 0;
  if (Status status = lost_.Check(request.job, request.uid, request.after_epoch, decided);
      !status) {
    return status.error();
  }
  const JobKey key{request.job, request.uid};
  auto found = jobs_.find(key);
  if (found != jobs_.end()) {
    if (Status status = CheckJoin(request, found->second); !status) return status.error();
  }
  if (Status status = CheckRoom(request, found == jobs_.end()); !status) return status.error();
  if (request.after_epoch == 0) lost_.Forget(request.job, request.uid);
  Use& use = uses_[request.uid];
  ++use.ranks;
  if (found == jobs_.end()) {
    ++use.jobs;
    found = jobs_
                .emplace(key, Job{.id = JobId{++jobs_opened_},
                                  .world_size = request.world_size,
                                  .goes_on = request.after_epoch != 0,
                                  .members_hash = request.members_hash,
                                  .rendezvous = request.rendezvous,
                                  .failure = {},
                                  .ranks = {}})
                .first;
  }
  Job& job = found->second;
  job.epoch = std::max(job.epoch, request.after_epoch + 1);
  job.ranks.insert_or_assign(request.rank,
                             RankEntry{.session = request.session, .pid = request.pid});
  HR_CHECK(!sessions_.contains(request.session), request.session.value);
  sessions_.insert_or_assign(request.session, Place{.job = key, .rank = request.rank});
  return RankSlot{.job = job.id, .epoch = job.epoch};
}

void RankTable::Withdraw(SessionId session) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  const Place place = found->second;
  sessions_.erase(found);
  Job& job = jobs_.at(place.job);
  job.ranks.erase(place.rank);
  EndRank(place.job);
}

void RankTable::Depart(SessionId session, bool orderly, std::string_view cause, bool exited) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  const Place place = found->second;
  sessions_.erase(found);
  Job& job = jobs_.at(place.job);
  RankEntry& entry = job.ranks.at(place.rank);
  HR_CHECK(entry.attached && entry.session == session, place.rank, session.value);
  entry.attached = false;
  // The first cause is what the others suffer from; later ones follow from it.
  if (!orderly && job.failure.empty()) {
    job.failure = fmt::format("rank {} (pid {}) {}", place.rank, entry.pid, cause);
    const auto& [name, uid] = place.job;
    if (exited) lost_.Note(name, uid, {.epoch = job.epoch, .cause = job.failure});
  }
  EndRank(place.job);
}

std::optional<RankTable::JobKey> RankTable::FailJob(JobId id, std::string_view cause) {
  const auto found = std::find_if(jobs_.begin(), jobs_.end(),
                                  [id](const auto& entry) { return entry.second.id == id; });
  if (found == jobs_.end() || !found->second.failure.empty()) return {};
  found->second.failure = cause;
  return found->first;
}

void RankTable::EndRank(const JobKey& key) {
  const auto use = uses_.find(key.second);
  HR_CHECK(use != uses_.end() && use->second.ranks > 0 && use->second.jobs > 0, key.second);
  const auto& ranks = jobs_.at(key).ranks;
  const bool empty = std::none_of(ranks.begin(), ranks.end(),
                                  [](const auto& entry) { return entry.second.attached; });
  if (empty) {
    jobs_.erase(key);
    --use->second.jobs;
  }
  if (--use->second.ranks == 0) uses_.erase(use);
}

}  // namespace headrace::service
