#include "service/cluster/followed_quorums.h"

#include <fmt/format.h>

#include <algorithm>

#include "ipc/base/check.h"

namespace headrace::service {

namespace {

Error LeftOut(const std::string& job, std::uint32_t member) {
  return Error(Code::kMismatch,
               fmt::format("job {} goes on without member {}, which did not come in time: end this "
                           "process",
                           job, member));
}

std::string DescribeDecision(const std::string& job, const Quorum& quorum) {
  std::vector<std::string> lost;
  for (const LostMember& each : quorum.lost) {
    lost.push_back(fmt::format("member {} ({})", each.member, each.cause));
  }
  const std::vector<std::uint32_t>& members = quorum.membership.members;
  const auto first_new =
      std::ranges::lower_bound(members, Quorum::FirstNew(quorum.membership.generation));
  const std::vector<std::uint32_t> joined(first_new, members.end());
  return fmt::format("job {} goes on with {} of {} ranks{}{}{}{}", job, members.size(),
                     members.size() - joined.size() + lost.size(),
                     lost.empty() ? "" : "; lost: ", fmt::join(lost, ", "),
                     joined.empty() ? "" : "; joined: member ", fmt::join(joined, ", member "));
}

}  // namespace

FollowedQuorums::Remembered* FollowedQuorums::Find(const JobKey& key) {
  const auto found = std::ranges::find(remembered_, key, &Remembered::key);
  return found == remembered_.end() ? nullptr : &*found;
}

FollowedQuorums::Remembered& FollowedQuorums::Remember(const JobKey& key) {
  if (Remembered* known = Find(key); known != nullptr) return *known;
  if (remembered_.size() == kJobsRememberedMax) ForgetOne();
  remembered_.push_back({.key = key, .members = {}});
  return remembered_.back();
}

// The oldest, of those that are needed no more, of the user that has the most of them.
void FollowedQuorums::ForgetOne() {
  std::map<std::uint32_t, std::size_t> counts;
  const auto is_needed = [this](const Remembered& each) {
    return HasAttached(each.key) || FindAsked(each.key) != questions_.end();
  };
  for (const Remembered& each : remembered_) {
    if (!is_needed(each)) ++counts[each.key.second];
  }
  // Rows bound the sessions that are attached, and kQuorumsAskedMax the questions.
  if (counts.empty()) return remembered_.pop_front();
  const auto most =
      std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; });
  const auto oldest = std::ranges::find_if(remembered_, [&](const Remembered& each) {
    return each.key.second == most->first && !is_needed(each);
  });
  HR_CHECK(oldest != remembered_.end(), most->first, most->second);
  remembered_.erase(oldest);
}

void FollowedQuorums::Note(Remembered& job, std::uint32_t number, Member member) {
  if (job.members.size() >= kMembersRememberedMax && !job.members.contains(number)) {
    const auto first = std::ranges::find_if(
        job.members, [](const auto& entry) { return entry.second.session == SessionId{}; });
    if (first == job.members.end()) return;
    job.members.erase(first);
  }
  job.members.insert_or_assign(number, std::move(member));
}

void FollowedQuorums::OnRankAttached(const SessionIdentity& identity) {
  const JobKey key{identity.job_name, identity.uid};
  // The job goes on, or begins anew: who has not asked by now is asked about no more.
  if (const auto open = FindAsked(key); open != questions_.end() && IsUnasked(open->second)) {
    Leave(open);
  }
  Remembered* known = Find(key);
  // A job of that name begins: what became of the members of the last one is over.
  const bool begins = identity.after_epoch == 0 && known != nullptr &&
                      std::ranges::none_of(known->members, [](const auto& entry) {
                        return entry.second.session != SessionId{};
                      });
  if (begins) {
    std::erase_if(remembered_, [&key](const Remembered& each) { return each.key == key; });
  }
  Remembered& job = Remember(key);
  job.epoch = std::max(job.epoch, identity.epoch);
  Note(job, identity.member, {.session = identity.id, .lost = {}});
  ReportIfAsked(key);
}

void FollowedQuorums::OnLeaseEnded(const SessionIdentity& identity, bool orderly,
                                   const std::string& cause, bool exited) {
  const JobKey key{identity.job_name, identity.uid};
  Remembered* job = Find(key);
  if (job == nullptr) return;
  const auto member = job->members.find(identity.member);
  if (member == job->members.end() || member->second.session != identity.id) return;
  if (orderly || exited) {
    member->second = {.session = {},
                      .lost = fmt::format("pid {} on node {} {}", identity.pid,
                                          jobs_.options().node_name, cause)};
  } else {
    job->members.erase(member);  // it may well come back
  }
  ReportIfAsked(key);
}

FollowedQuorums::Questions::iterator FollowedQuorums::FindAsked(const JobKey& key) {
  return std::ranges::find_if(questions_,
                              [&key](const auto& entry) { return entry.second.key == key; });
}

FollowedQuorums::Questions::iterator FollowedQuorums::Of(const std::string& leader,
                                                         std::uint32_t number) {
  const auto found = questions_.find(number);
  return found != questions_.end() && found->second.leader == leader ? found : questions_.end();
}

Result<FollowedQuorums::Questions::iterator> FollowedQuorums::Open(const AskQuorum& message) {
  const JobKey key{message.job, message.uid};
  if (const auto found = FindAsked(key); found != questions_.end()) {
    if (found->second.leader == message.leader) return found;
    if (IsUnasked(found->second)) {
      Leave(found);
      return Open(message);
    }
    return Error(
        Code::kMismatch,
        fmt::format("member {} (pid {}) says job {} meets at \"{}\", others said \"{}\": give "
                    "all ranks the same rendezvous",
                    message.member, message.pid, message.job, message.leader,
                    found->second.leader));
  }
  // As many more as are left for others.
  const auto own = static_cast<std::size_t>(std::ranges::count_if(
      questions_, [&key](const auto& entry) { return entry.second.key.second == key.second; }));
  if (own + questions_.size() >= kQuorumsAskedMax) {
    return Error(Code::kBusy,
                 fmt::format("{} jobs of this node, {} of them of uid {}, ask who is left of them, "
                             "and what is free is for other users: ask again when one of them is "
                             "answered",
                             questions_.size(), own, key.second));
  }
  return Add(key, message.leader);
}

FollowedQuorums::Questions::iterator FollowedQuorums::Add(const JobKey& key,
                                                          const std::string& leader) {
  const auto opened =
      questions_
          .emplace(
              ++asked_,
              Question{.key = key, .leader = leader, .waits = {}, .askers = {}, .applicants = {}})
          .first;
  if (!leader.empty()) {
    opened->second.waits = fmt::format("the service at {} is being reached", leader);
  }
  jobs_.KeepLeader(leader);
  return opened;
}

void FollowedQuorums::OnJobLost(const LostJob& lost) {
  const JobKey key{lost.name, lost.uid};
  if (Find(key) == nullptr) return;
  if (FindAsked(key) == questions_.end()) {
    if (questions_.size() >= kQuorumsAskedMax) return;
    Add(key, lost.leader);
  }
  ReportIfAsked(key);
}

void FollowedQuorums::Leave(Questions::iterator question) {
  jobs_.SendTo(question->second.leader, LeaveQuorum{.job = question->first});
  Erase(question);
}

bool FollowedQuorums::HasAttached(const JobKey& key) {
  const Remembered* job = Find(key);
  return job != nullptr && std::ranges::any_of(job->members, [](const auto& entry) {
           return entry.second.session != SessionId{};
         });
}

std::map<std::uint32_t, FollowedQuorums::Asker>::iterator FollowedQuorums::FindClient(
    std::map<std::uint32_t, Asker>& askers, std::uint64_t client) {
  return std::ranges::find_if(
      askers, [client](const auto& entry) { return entry.second.client == client; });
}

void FollowedQuorums::HandleApplicant(const AskQuorum& message) {
  const auto refuse = [this, &message](const Error& error) {
    jobs_.Add(QuorumAnswered{.token = message.token, .quorum = error, .waits = {}});
  };
  const Result<Questions::iterator> open = Open(message);
  if (!open) return refuse(open.error());
  Question& question = (*open)->second;
  const auto known = FindClient(question.applicants, message.client);
  if (known != question.applicants.end()) {
    known->second.ask = message;
    known->second.waiting = true;
    return;
  }
  if (question.applicants.size() >= transport::kMembersMax) {
    return refuse(Error(Code::kBusy,
                        fmt::format("{} processes of this node wait to join job {}, more are not "
                                    "supported",
                                    question.applicants.size(), message.job)));
  }
  applied_ = (applied_ + 1) % kApplicantsFrom;
  question.applicants.insert_or_assign(
      kApplicantsFrom + applied_, Asker{.client = message.client, .ask = message, .waiting = true});
  Report((*open)->first, question);
}

void FollowedQuorums::Handle(const AskQuorum& message) {
  if (const auto kept = answers_.find(message.client); kept != answers_.end()) {
    jobs_.Add(QuorumAnswered{.token = message.token, .quorum = kept->second, .waits = {}});
    answers_.erase(kept);
    return;
  }
  if (const std::optional<std::string> other = AskedBesides(message); other) {
    jobs_.Add(QuorumAnswered{
        .token = message.token,
        .quorum = Error(Code::kAlreadyExists,
                        fmt::format("this connection asks for {} already, and now for member {} of "
                                    "job {}: each has a connection of its own",
                                    *other, message.member, message.job)),
        .waits = {}});
    return;
  }
  if (message.role != MemberRole::kMember) return HandleApplicant(message);
  HR_CHECK(message.membership.RankOf(message.member).has_value(), message.job, message.member);
  Remembered* job = Find({message.job, message.uid});
  if (job != nullptr) {
    const auto member = job->members.find(message.member);
    if (member != job->members.end() && !member->second.lost.empty()) {
      jobs_.Add(QuorumAnswered{
          .token = message.token,
          .quorum =
              Error(Code::kMismatch, fmt::format("job {} goes on without member {}: {}",
                                                 message.job, message.member, member->second.lost)),
          .waits = {}});
      return;
    }
  }
  const Result<Questions::iterator> open = Open(message);
  if (!open) {
    jobs_.Add(QuorumAnswered{.token = message.token, .quorum = open.error(), .waits = {}});
    return;
  }
  const std::uint32_t number = (*open)->first;
  Question& question = (*open)->second;
  Asker& asker = question.askers[message.member];
  const bool is_new = asker.client != message.client;
  if (is_new && asker.waiting) {
    Answer(asker, Error(Code::kAlreadyExists,
                        fmt::format("member {} of job {} asks over another connection, as pid {}: "
                                    "end one of the two processes",
                                    message.member, message.job, message.pid)));
  }
  asker = {.client = message.client, .ask = message, .waiting = true};
  if (!is_new) return;
  RefuseLeftOut(question);
  HR_CHECK(!question.askers.empty() && question.askers.size() <= transport::kMembersMax,
           message.job, question.askers.size());
  Report(number, question);
}

// What the connection asks for beside this: it keeps one place.
std::optional<std::string> FollowedQuorums::AskedBesides(const AskQuorum& message) const {
  const JobKey key{message.job, message.uid};
  for (const auto& [number, question] : questions_) {
    const bool same_job = question.key == key;
    const bool applies = message.role != MemberRole::kMember;
    for (const auto& [member, asker] : question.askers) {
      if (asker.client != message.client) continue;
      if (same_job && !applies && member == message.member) continue;
      return fmt::format("member {} of job {}", member, question.key.first);
    }
    for (const auto& [number_of, applicant] : question.applicants) {
      if (applicant.client != message.client || (same_job && applies)) continue;
      return fmt::format("a place in job {}", question.key.first);
    }
  }
  return {};
}

void FollowedQuorums::RefuseLeftOut(Question& question) {
  const auto newest =
      std::ranges::max_element(question.askers, [](const auto& one, const auto& other) {
        return IsNewer(other.second.ask.membership, one.second.ask.membership);
      });
  const Membership membership = newest->second.ask.membership;
  for (auto at = question.askers.begin(); at != question.askers.end();) {
    auto& [member, asker] = *at;
    if (membership.RankOf(member)) {
      ++at;
      continue;
    }
    Answer(asker, LeftOut(question.key.first, member));
    at = question.askers.erase(at);
  }
}

void FollowedQuorums::Handle(const QuorumClientLost& message) {
  answers_.erase(message.client);
  for (auto at = questions_.begin(); at != questions_.end(); ++at) {
    Question& question = at->second;
    const auto applicant = FindClient(question.applicants, message.client);
    const auto asker = FindClient(question.askers, message.client);
    const bool applies = applicant != question.applicants.end();
    if (!applies && asker == question.askers.end()) continue;
    if (message.exited && !applies) {
      Note(Remember(question.key), asker->first,
           {.session = {},
            .lost = fmt::format("pid {} on node {} exited or was killed", asker->second.ask.pid,
                                jobs_.options().node_name)});
    }
    if (applies) {
      question.applicants.erase(applicant);
    } else {
      question.askers.erase(asker);
    }
    if (IsUnasked(question)) {
      Leave(at);
    } else {
      Report(at->first, question);
    }
    return;
  }
}

void FollowedQuorums::ReportIfAsked(const JobKey& key) {
  const auto asked = FindAsked(key);
  if (asked == questions_.end()) return;
  const Remembered* job = Find(key);
  // Of those that were there all come back.
  if (IsUnasked(asked->second) && (job == nullptr || job->members.empty())) return Leave(asked);
  Report(asked->first, asked->second);
}

void FollowedQuorums::Report(std::uint32_t number, Question& question) {
  ReportQuorum report{.job = number,
                      .name = question.key.first,
                      .uid = question.key.second,
                      .membership = {},
                      .rules = {},
                      .members = {}};
  std::map<std::uint32_t, MemberReport> members;
  if (const Remembered* job = Find(question.key); job != nullptr) {
    report.epoch = job->epoch;
    for (const auto& [number_of, member] : job->members) {
      const bool lost = !member.lost.empty();
      members[number_of] = {.member = number_of,
                            .state = lost ? MemberState::kLost : MemberState::kAttached,
                            .cause = member.lost};
    }
  }
  for (const auto& [number_of, asker] : question.askers) {
    members[number_of] = {.member = number_of, .state = MemberState::kAsks};
    report.epoch = std::max(report.epoch, asker.ask.epoch);
    report.rules.min_world = std::max(report.rules.min_world, asker.ask.rules.min_world);
    report.rules.grace_ms = std::max(report.rules.grace_ms, asker.ask.rules.grace_ms);
    if (IsNewer(asker.ask.membership, report.membership)) report.membership = asker.ask.membership;
  }
  // Where nobody asks, those that the node knows stand for a membership that any other is newer
  // than.
  const bool asked = !question.askers.empty();
  for (auto& [number_of, member] : members) {
    if (!asked && report.members.size() < transport::kMembersMax) {
      report.membership.members.push_back(number_of);
    }
    if (report.membership.RankOf(number_of)) report.members.push_back(std::move(member));
  }
  // Of a job of which nothing is known here there is one member at least.
  if (report.membership.members.empty()) report.membership.members.push_back(0);
  for (const auto& [number_of, applicant] : question.applicants) {
    if (report.members.size() >= transport::kMembersMax) break;
    const bool spare = applicant.ask.role == MemberRole::kSpare;
    report.members.push_back(
        {.member = number_of, .state = spare ? MemberState::kSpare : MemberState::kJoins});
    report.rules.min_world = std::max(report.rules.min_world, applicant.ask.rules.min_world);
  }
  if (!IsUnasked(question) || HasAttached(question.key)) {
    question.until_ns = kNever;
  } else if (question.until_ns == kNever) {
    question.until_ns = 0;
  }
  jobs_.SendTo(question.leader, std::move(report));
}

void FollowedQuorums::Answer(Asker& asker, Result<Quorum> result) {
  if (asker.waiting) {
    jobs_.Add(QuorumAnswered{.token = asker.ask.token, .quorum = std::move(result), .waits = {}});
  } else {
    answers_.insert_or_assign(asker.client, std::move(result));
  }
  asker.waiting = false;
}

void FollowedQuorums::Close(Questions::iterator question, const Result<Quorum>& result) {
  for (auto& [member, asker] : question->second.askers) Answer(asker, result);
  for (auto& [number, applicant] : question->second.applicants) Answer(applicant, result);
  Erase(question);
}

void FollowedQuorums::Erase(Questions::iterator question) {
  const std::string leader = question->second.leader;
  questions_.erase(question);
  jobs_.ReleaseLeader(leader);
}

void FollowedQuorums::Handle(const std::string& leader, const AnnounceQuorumWaits& message) {
  const auto question = Of(leader, message.job);
  // The leader counts it still: a report was under way when it answered.
  if (question == questions_.end()) return jobs_.SendTo(leader, LeaveQuorum{.job = message.job});
  question->second.waits = message.text;
}

void FollowedQuorums::Handle(const std::string& leader, const AnnounceQuorum& message) {
  const auto question = Of(leader, message.job);
  if (question == questions_.end()) return;
  const Quorum& quorum = message.quorum;
  for (auto& [member, asker] : question->second.askers) {
    if (quorum.membership.RankOf(member)) {
      Answer(asker, quorum);
    } else if (IsNewer(quorum.membership, asker.ask.membership)) {
      Answer(asker, LeftOut(question->second.key.first, member));
    } else {
      Answer(asker, Error(Code::kBusy, fmt::format("job {} was decided about before member {} had "
                                                   "come",
                                                   question->second.key.first, member)));
    }
  }
  for (const Admission& each : quorum.admitted) {
    const auto applicant = question->second.applicants.find(each.applicant);
    if (applicant == question->second.applicants.end()) continue;
    Quorum own = quorum;
    own.own = each.member;
    Answer(applicant->second, std::move(own));
    question->second.applicants.erase(applicant);
  }
  jobs_.Add(ToWatch{Event{.code = quorum.lost.empty() ? Code::kOk : Code::kPeerLost,
                          .job = {},
                          .text = DescribeDecision(question->second.key.first, quorum),
                          .uid = question->second.key.second}});
  // Whoever was not let in waits for the next decision.
  Question next = std::move(question->second);
  next.askers.clear();
  if (!next.applicants.empty()) {
    const auto opened = Add(next.key, next.leader);
    opened->second.applicants = std::move(next.applicants);
    Report(opened->first, opened->second);
  }
  jobs_.ReleaseLeader(next.leader);
  questions_.erase(question);
}

void FollowedQuorums::Handle(const std::string& leader, const AnnounceQuorumRefused& message) {
  const auto question = Of(leader, message.job);
  if (question == questions_.end()) return;
  const Error error(message.code, message.cause);
  if (message.members.empty()) return Close(question, error);
  bool erased = false;
  for (const std::uint32_t member : message.members) {
    const auto asker = question->second.askers.find(member);
    if (asker == question->second.askers.end()) continue;
    Answer(asker->second, error);
    question->second.askers.erase(asker);
    erased = true;
  }
  // Or answers and reports would follow each other for ever.
  if (!erased) return;
  if (IsUnasked(question->second)) {
    Leave(question);
  } else {
    Report(message.job, question->second);
  }
}

void FollowedQuorums::OnLeaderUp(const std::string& leader) {
  for (auto& [number, question] : questions_) {
    if (question.leader == leader) Report(number, question);
  }
}

void FollowedQuorums::OnLeaderDown(const std::string& leader, const std::string& cause) {
  for (auto& [number, question] : questions_) {
    if (question.leader == leader) question.waits = cause;
  }
}

void FollowedQuorums::OnLeaderRefused(const std::string& leader, const Error& error) {
  for (auto at = questions_.begin(); at != questions_.end();) {
    const auto question = at++;
    if (question->second.leader == leader) Close(question, error);
  }
}

TimeNs FollowedQuorums::NextDeadline() const {
  TimeNs next = kNever;
  for (const auto& [number, question] : questions_) {
    next = std::min(next, question.until_ns);
    for (const auto* const askers : {&question.askers, &question.applicants}) {
      for (const auto& [member, asker] : *askers) {
        if (asker.waiting) next = std::min(next, asker.ask.until_ns);
      }
    }
  }
  return next;
}

void FollowedQuorums::Expire(TimeNs now) {
  for (auto at = questions_.begin(); at != questions_.end();) {
    const auto question = at++;
    TimeNs& until_ns = question->second.until_ns;
    if (until_ns == 0) until_ns = now + kLostMembersToldNs;
    if (now >= until_ns) Leave(question);
  }
  for (auto& [number, question] : questions_) {
    for (auto* const askers : {&question.askers, &question.applicants}) {
      for (auto& [member, asker] : *askers) {
        if (!asker.waiting || now < asker.ask.until_ns) continue;
        asker.waiting = false;
        jobs_.Add(
            QuorumAnswered{.token = asker.ask.token,
                           .quorum = Error(Code::kUnavailable, question.waits),
                           .waits = question.waits.empty() ? "the job's leader" : question.waits});
      }
    }
  }
}

}  // namespace headrace::service
