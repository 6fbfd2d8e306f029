#include "service/cluster/followed_quorums.h"

#include <fmt/format.h>

#include <algorithm>

#include "ipc/base/check.h"

namespace headrace::service {

KnownMembers::Job& FollowedQuorums::Remember(const JobKey& key) {
  return members_.Remember(key, [this](const JobKey& each) {
    return members_.HasAttached(each) || FindAsked(each) != questions_.end();
  });
}

void FollowedQuorums::OnRankAttached(const SessionIdentity& identity) {
  const JobKey key{identity.job_name, identity.uid};
  const auto open = FindAsked(key);
  if (WasDecided(identity)) {
    // The question stays open until all members have attached. A member that has missed the
    // decision may ask again, and must find those that wait for it attached and not lost.
    if (open == questions_.end() && questions_.size() < kQuorumsAskedMax) {
      Add(key, {identity.rendezvous});
    }
  } else if (open != questions_.end() && IsUnasked(open->second)) {
    // The job runs again, so nobody needs the question any more.
    Leave(open);
  }
  // A new job of that name begins; the former job's members do not count for it.
  if (identity.after_epoch == 0 && !members_.HasAttached(key)) {
    members_.Forget(key);
    if (!identity.rendezvous.empty()) jobs_.directory().Forget(key);
  }
  KnownMembers::Job& job = Remember(key);
  job.epoch = std::max(job.epoch, identity.epoch);
  job.stall_ms = StallOf(identity.slow_bound);
  KnownMembers::Note(job, identity.member, {.session = identity.id, .lost = {}});
  ReportIfAsked(key);
}

void FollowedQuorums::OnLeaseEnded(const SessionIdentity& identity, bool orderly,
                                   const std::string& cause, bool exited) {
  const JobKey key{identity.job_name, identity.uid};
  KnownMembers::Job* job = members_.Find(key);
  if (job == nullptr) return;
  const auto member = job->members.find(identity.member);
  if (member == job->members.end() || member->second.session != identity.id) return;
  if (orderly || exited) {
    member->second = {.session = {},
                      .lost = fmt::format("pid {} on node {} {}", identity.pid,
                                          jobs_.options().node_name, cause)};
  } else {
    job->members.erase(member);  // its process lives and may come back
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
  return found != questions_.end() && found->second.places.Has(leader) ? found : questions_.end();
}

Result<FollowedQuorums::Questions::iterator> FollowedQuorums::Open(const AskQuorum& message) {
  const JobKey key{message.job, message.uid};
  if (const auto found = FindAsked(key); found != questions_.end()) {
    Question& question = found->second;
    if (question.rendezvous.contains(message.leader)) return found;
    // The directory knows where the job runs better than the rendezvous with which ranks started.
    const bool led_here = message.leader.empty() || question.rendezvous.contains("");
    if (jobs_.directory().Find(key) != nullptr && !led_here) {
      if (question.rendezvous.size() == kOtherPlacesMax) return found;
      question.rendezvous.insert(message.leader);
      MoveTo(question, PlacesFor(question));
      Report(found->first, question);
      return found;
    }
    if (IsUnasked(question)) {
      Leave(found);
      return Open(message);
    }
    return Error(
        Code::kMismatch,
        fmt::format("member {} (pid {}) says job {} meets at \"{}\", others said \"{}\": give "
                    "all ranks the same rendezvous",
                    message.member, message.pid, message.job, message.leader,
                    *question.rendezvous.begin()));
  }
  const Status room = CheckRoom(questions_, asked_services_, key, message.leader,
                                jobs_.directory().Find(key), jobs_.options());
  if (!room) return room.error();
  return Add(key, {message.leader});
}

FollowedQuorums::Questions::iterator FollowedQuorums::Add(const JobKey& key,
                                                          std::set<std::string> rendezvous) {
  const auto opened = questions_
                          .emplace(++asked_, Question{.key = key,
                                                      .rendezvous = std::move(rendezvous),
                                                      .places = {},
                                                      .meeting = {},
                                                      .waits = {},
                                                      .askers = {},
                                                      .applicants = {}})
                          .first;
  Question& question = opened->second;
  MoveTo(question, PlacesFor(question));
  const std::string& first = question.places.all().front().leader;
  if (!first.empty()) question.waits = fmt::format("the service at {} is being reached", first);
  return opened;
}

std::vector<QuorumPlace> FollowedQuorums::PlacesFor(Question& question) {
  const std::uint32_t uid = question.key.second;
  asked_services_.Remove(uid, question.places);
  std::vector<QuorumPlace> places = PlacesWithinLimit(
      question, asked_services_, jobs_.directory().Find(question.key), jobs_.options());
  asked_services_.Add(uid, question.places);
  return places;
}

void FollowedQuorums::MoveTo(Question& question, std::vector<QuorumPlace> places) {
  HR_CHECK(!places.empty(), question.key.first);
  const std::uint32_t uid = question.key.second;
  std::vector<std::string> left;
  for (const QuorumPlace& each : question.places.all()) left.push_back(each.leader);
  for (QuorumPlace& each : places) {
    if (!question.places.Has(each.leader)) jobs_.KeepLeader(each.leader);
    std::erase(left, each.leader);
    if (jobs_.IsUp(each.leader)) each.state = QuorumPlace::State::kUp;
  }
  if (asked_services_.Remove(uid, question.places) && !left.empty()) have_room_.insert(uid);
  question.places.Replace(std::move(places));
  asked_services_.Add(uid, question.places);
  for (const std::string& leader : left) jobs_.ReleaseLeader(leader);
  // The remaining places may have other indices.
  question.meeting.reset();
}

// Each message of a client may change what is known of one job: no more is looked at than that.
void FollowedQuorums::RefreshPlaces() {
  for (const JobKey& key : jobs_.directory().ChangedSince(places_known_)) {
    const auto asked = FindAsked(key);
    if (asked != questions_.end()) RefreshPlacesOf(asked->first, asked->second);
  }
  places_known_ = jobs_.directory().changes();
  const std::set<std::uint32_t> users = std::exchange(have_room_, {});
  if (users.empty()) return;
  for (auto& [number, question] : questions_) {
    const std::uint32_t uid = question.key.second;
    const bool may_have = question.left_out > 0 && users.contains(uid) &&
                          asked_services_.MayAsk(uid, question.first_left_out);
    if (may_have) RefreshPlacesOf(number, question);
  }
}

void FollowedQuorums::RefreshPlacesOf(std::uint32_t number, Question& question) {
  std::vector<QuorumPlace> places = PlacesFor(question);
  const auto same = [](const QuorumPlace& one, const QuorumPlace& other) {
    return one.leader == other.leader && one.meets == other.meets;
  };
  if (std::ranges::equal(places, question.places.all(), same)) return;
  MoveTo(question, std::move(places));
  Report(number, question);
}

bool FollowedQuorums::WasDecided(const SessionIdentity& identity) const {
  const JobPlaces* known = jobs_.directory().Find({identity.job_name, identity.uid});
  return known != nullptr && known->membership.generation != 0 && identity.after_epoch != 0 &&
         known->epoch == identity.after_epoch && !identity.rendezvous.empty();
}

void FollowedQuorums::OnJobLost(const LostJob& lost) {
  const JobKey key{lost.name, lost.uid};
  if (members_.Find(key) == nullptr) return;
  if (FindAsked(key) == questions_.end()) {
    if (questions_.size() >= kQuorumsAskedMax) return;
    Add(key, {lost.leader});
  }
  ReportIfAsked(key);
}

void FollowedQuorums::OnJobRunning(const JobKey& key) {
  const auto open = FindAsked(key);
  if (open != questions_.end() && IsUnasked(open->second)) Leave(open);
}

void FollowedQuorums::Leave(Questions::iterator question) {
  for (const QuorumPlace& place : question->second.places.all()) {
    if (place.IsUp()) jobs_.SendTo(place.leader, LeaveQuorum{.job = question->first});
  }
  Erase(question);
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
  if (const auto other = AskedBesides(questions_, message); other) {
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
  const KnownMembers::Job* job = members_.Find({message.job, message.uid});
  if (job != nullptr) {
    const auto member = job->members.find(message.member);
    if (member != job->members.end() && !member->second.lost.empty()) {
      jobs_.Add(QuorumAnswered{
          .token = message.token,
          .quorum =
              Error(Code::kMismatch, fmt::format("job {} continues without member {}: {}",
                                                 message.job, message.member, member->second.lost)),
          .waits = {}});
      return;
    }
  }
  NotePlaces(message);
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

// A service that was there in that epoch knows its places, or later ones.
void FollowedQuorums::NotePlaces(const AskQuorum& message) {
  if (message.places.empty() || message.leader.empty() || message.epoch == 0) return;
  jobs_.directory().OnReported(
      {message.job, message.uid},
      {.membership = message.membership, .epoch = message.epoch, .places = message.places});
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
      KnownMembers::Note(Remember(question.key), asker->first,
                         {.session = {},
                          .lost = fmt::format("pid {} on node {} exited or was killed",
                                              asker->second.ask.pid, jobs_.options().node_name)});
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
  const KnownMembers::Job* job = members_.Find(key);
  // No member was lost, so all of them may come back.
  if (IsUnasked(asked->second) && (job == nullptr || job->members.empty())) return Leave(asked);
  Report(asked->first, asked->second);
}

void FollowedQuorums::Report(std::uint32_t number, Question& question) {
  if (!IsUnasked(question) || members_.HasAttached(question.key)) {
    question.until_ns = kNever;
  } else if (question.until_ns == kNever) {
    question.until_ns = 0;
  }
  ReportQuorum report = DescribeMembers(number, question, members_.Find(question.key));
  if (const JobPlaces* known = jobs_.directory().Find(question.key); known != nullptr) {
    report.places_epoch = known->epoch;
  }
  question.meeting = question.places.Meeting();
  for (std::size_t i = 0; i < question.places.all().size(); ++i) {
    QuorumPlace& place = question.places.all()[i];
    if (!place.IsUp()) continue;
    Inform(question, place);
    report.meets_here = question.meeting == i;
    jobs_.SendTo(place.leader, report);
  }
}

void FollowedQuorums::CheckMeeting(std::uint32_t number, Question& question) {
  if (question.places.Meeting() != question.meeting) Report(number, question);
}

void FollowedQuorums::Inform(const Question& question, QuorumPlace& place) {
  if (std::exchange(place.informed, true) || place.leader.empty()) return;
  const JobPlaces* known = jobs_.directory().Find(question.key);
  if (known == nullptr) return;
  JobPlaces places = *known;
  places.HideOwn(jobs_.options().node_name);
  jobs_.SendTo(place.leader, ReportJobPlaces{.name = question.key.first,
                                             .uid = question.key.second,
                                             .places = std::move(places)});
}

void FollowedQuorums::Spread(Question& question, const std::string& leader, const Quorum& quorum) {
  if (leader.empty()) return;
  const JobPlaces* known = jobs_.directory().Find(question.key);
  JobPlaces places = known == nullptr ? JobPlaces{} : *known;
  // The places keep the order of the last epoch that ran, which all services know.
  places.membership = quorum.membership;
  places.epoch = quorum.epoch;
  jobs_.directory().Note(question.key, std::move(places));
  for (QuorumPlace& place : question.places.all()) {
    if (!place.IsUp() || place.leader == leader) continue;
    place.informed = false;
    Inform(question, place);
  }
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
  Leave(question);
}

void FollowedQuorums::Erase(Questions::iterator question) {
  const Question gone = std::move(question->second);
  questions_.erase(question);
  const std::uint32_t uid = gone.key.second;
  if (asked_services_.Remove(uid, gone.places)) have_room_.insert(uid);
  for (const QuorumPlace& place : gone.places.all()) jobs_.ReleaseLeader(place.leader);
}

void FollowedQuorums::Handle(const std::string& leader, const AnnounceQuorumWaits& message) {
  const auto question = Of(leader, message.job);
  // The leader still has the question, because a report was in flight when it answered.
  if (question == questions_.end()) return jobs_.SendTo(leader, LeaveQuorum{.job = message.job});
  Question& asked = question->second;
  QuorumPlace& place = *asked.places.Find(leader);
  place.state = QuorumPlace::State::kHeard;
  CheckMeeting(message.job, asked);
  if (asked.meeting && &asked.places.all()[*asked.meeting] == &place) asked.waits = message.text;
}

void FollowedQuorums::Handle(const std::string& leader, const AnnounceJobPlaces& message) {
  const auto question = Of(leader, message.job);
  if (question == questions_.end() || leader.empty()) return;
  JobPlaces places = message.places;
  const QuorumPlace& from = *question->second.places.Find(leader);
  // The sender leaves its own address empty: it is that of the connection.
  for (auto* const list : {&places.places, &places.former}) {
    for (JobPlace& each : *list) {
      if (each.address.empty()) each.address = from.where.address;
    }
  }
  jobs_.directory().OnReported(question->second.key, std::move(places));
}

void FollowedQuorums::Handle(const std::string& leader, const AnnounceQuorum& message) {
  const auto question = Of(leader, message.job);
  if (question == questions_.end()) return;
  Quorum quorum = message.quorum;
  quorum.rendezvous = leader;
  Spread(question->second, leader, quorum);
  for (SessionBroken& each : EvictionsBy(quorum, members_.Find(question->second.key)))
    jobs_.Add(std::move(each));
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
  // Applicants that were not admitted wait for the next decision.
  if (!question->second.applicants.empty()) {
    const auto opened = Add(question->second.key, question->second.rendezvous);
    opened->second.applicants = std::move(question->second.applicants);
    Report(opened->first, opened->second);
  }
  for (const QuorumPlace& place : question->second.places.all()) {
    const bool others = place.IsUp() && place.leader != leader;
    if (others) jobs_.SendTo(place.leader, LeaveQuorum{.job = message.job});
  }
  Erase(question);
}

void FollowedQuorums::Handle(const std::string& leader, const AnnounceQuorumRefused& message) {
  const auto question = Of(leader, message.job);
  if (question == questions_.end()) return;
  const Error error(message.code, message.cause);
  Question& asked = question->second;
  QuorumPlace& place = *asked.places.Find(leader);
  const bool meets = asked.meeting && &asked.places.all()[*asked.meeting] == &place;
  if (message.members.empty()) {
    // A refusal ends the question whichever service sends it, except kBusy from another than the
    // meeting place: that service only has no room for the question.
    if (meets || message.code != Code::kBusy) return Close(question, error);
    place.state = QuorumPlace::State::kHeard;
    return CheckMeeting(message.job, asked);
  }
  bool erased = false;
  for (const std::uint32_t member : message.members) {
    const auto asker = question->second.askers.find(member);
    if (asker == question->second.askers.end()) continue;
    Answer(asker->second, error);
    question->second.askers.erase(asker);
    erased = true;
  }
  // Without a change no report is sent: otherwise answers and reports would alternate for ever.
  if (!erased) return;
  if (IsUnasked(question->second)) {
    Leave(question);
  } else {
    Report(message.job, question->second);
  }
}

void FollowedQuorums::OnLeaderUp(const std::string& leader) {
  for (auto& [number, question] : questions_) {
    QuorumPlace* const place = question.places.Find(leader);
    if (place == nullptr) continue;
    place->state = QuorumPlace::State::kUp;
    place->informed = false;
    Report(number, question);
  }
}

void FollowedQuorums::OnLeaderDown(const std::string& leader, const std::string& cause) {
  for (auto& [number, question] : questions_) {
    QuorumPlace* const place = question.places.Find(leader);
    if (place == nullptr) continue;
    const bool met = question.meeting && &question.places.all()[*question.meeting] == place;
    if (met || !question.meeting) question.waits = cause;
    if (place->IsUp()) place->state = QuorumPlace::State::kTrying;
    CheckMeeting(number, question);
  }
}

void FollowedQuorums::OnLeaderUnreachable(const std::string& leader, const std::string& cause) {
  for (auto& [number, question] : questions_) {
    QuorumPlace* const place = question.places.Find(leader);
    if (place == nullptr || place->IsUp()) continue;
    place->state = QuorumPlace::State::kGone;
    if (!question.places.Meeting()) question.waits = cause;
    CheckMeeting(number, question);
  }
}

void FollowedQuorums::OnLeaderRefused(const std::string& leader, const Error& error) {
  for (auto at = questions_.begin(); at != questions_.end();) {
    const auto question = at++;
    QuorumPlace* const place = question->second.places.Find(leader);
    if (place == nullptr) continue;
    const bool only = place->meets && question->second.places.meeting_count() == 1;
    if (only) {
      Close(question, error);
    } else {
      place->state = QuorumPlace::State::kGone;
      question->second.waits = error.text();
      CheckMeeting(question->first, question->second);
    }
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
        const std::string waits = DescribeWaits(question);
        jobs_.Add(QuorumAnswered{.token = asker.ask.token,
                                 .quorum = Error(Code::kUnavailable, waits),
                                 .waits = waits.empty() ? "the job's leader" : waits});
      }
    }
  }
}

}  // namespace headrace::service
