#include "service/cluster/led_quorums.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"
#include "service/cluster/names.h"
#include "service/session/fair_drop.h"
#include "transport/transport.h"

namespace headrace::service {
namespace {

// For an evaluation that neither starts nor ends grace times. Expire does so, and is due at once.
constexpr TimeNs kNoTime = -1;

const MemberReport* FindMember(const ReportQuorum& report, std::uint32_t member) {
  const auto found = std::ranges::find(report.members, member, &MemberReport::member);
  return found == report.members.end() ? nullptr : &*found;
}

std::string DescribeLost(const std::vector<LostMember>& lost) {
  std::vector<std::string> texts;
  for (const LostMember& each : lost) {
    texts.push_back(fmt::format("member {} ({})", each.member, each.cause));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string ListMembers(const char* what, const std::vector<std::uint32_t>& members) {
  return fmt::format("{} {} {}", members.size() == 1 ? "member" : "members",
                     fmt::join(members, ", "), what);
}

}  // namespace

std::uint64_t LedQuorums::Find(const std::string& name, std::uint32_t uid) const {
  const auto found = std::ranges::find_if(quorums_, [&](const auto& entry) {
    return entry.second.name == name && entry.second.uid == uid;
  });
  return found == quorums_.end() ? 0 : found->first;
}

const LedQuorums::Known* LedQuorums::FindKnown(std::string_view name, std::uint32_t uid) const {
  const auto found = std::ranges::find_if(
      known_, [&](const Known& each) { return each.name == name && each.uid == uid; });
  return found == known_.end() ? nullptr : &*found;
}

LedQuorums::Known& LedQuorums::Remember(const std::string& name, std::uint32_t uid) {
  Known known{.name = name, .uid = uid, .answered = {}};
  if (const Known* before = FindKnown(name, uid); before != nullptr) known = *before;
  std::erase_if(known_, [&](const Known& each) { return each.name == name && each.uid == uid; });
  if (known_.size() == kQuorumsRememberedMax) ForgetOne();
  known_.push_back(std::move(known));
  return known_.back();
}

// Drops the oldest of the user with the most, so that no user displaces the decisions of another.
void LedQuorums::ForgetOne() { known_.erase(OldestOfGreediest(known_, &Known::uid)); }

void LedQuorums::Forget(std::string_view job, std::uint32_t uid) {
  jobs_.directory().Forget({std::string(job), uid});
  std::erase_if(known_, [&](const Known& each) { return each.name == job && each.uid == uid; });
}

void LedQuorums::OnEpochLost(const std::string& job, std::uint32_t uid, std::uint32_t epoch) {
  Known& known = Remember(job, uid);
  known.epoch = std::max(known.epoch, epoch);
}

void LedQuorums::Refuse(NodeId node, const ReportQuorum& report, Code code, std::string cause,
                        std::vector<std::uint32_t> members) {
  jobs_.SendTo(node, AnnounceQuorumRefused{.job = report.job,
                                           .code = code,
                                           .cause = std::move(cause),
                                           .members = std::move(members)});
}

void LedQuorums::RefuseLeftOut(NodeId node, const ReportQuorum& report, const View& view) {
  std::vector<std::uint32_t> left_out;
  for (const MemberReport& each : report.members) {
    if (each.state == MemberState::kAsks && !view.membership.RankOf(each.member)) {
      left_out.push_back(each.member);
    }
  }
  if (left_out.empty()) return;
  // One answer for each report, whatever the number of members in it.
  std::string cause = fmt::format(
      "job {} continues without {} {}, which did not come in time: end this process", report.name,
      left_out.size() == 1 ? "member" : "members", fmt::join(left_out, ", "));
  Refuse(node, report, Code::kMismatch, std::move(cause), std::move(left_out));
}

LedQuorums::Service LedQuorums::ServiceOf(NodeId node) const {
  const NodeFacts& facts = jobs_.nodes().at(node).facts;
  return {facts.name, facts.instance};
}

bool LedQuorums::AreAsking(const std::string& name, std::uint32_t uid) const {
  const auto found = quorums_.find(Find(name, uid));
  return found != quorums_.end() &&
         std::ranges::any_of(found->second.reports, [](const auto& entry) {
           return std::ranges::any_of(entry.second.members, [](const MemberReport& each) {
             return each.state == MemberState::kAsks || IsApplicant(each.state);
           });
         });
}

bool LedQuorums::IsAnswered(NodeId node, const ReportQuorum& report) {
  const auto known = std::ranges::find_if(known_, [&report](const Known& each) {
    return each.name == report.name && each.uid == report.uid;
  });
  if (known == known_.end()) return false;
  const auto found = known->answered.find(ServiceOf(node));
  if (found == known->answered.end() || report.job > found->second.question) return false;
  Answered& answered = found->second;
  if (answered.node == node) return true;
  // If the others have asked again since, or will have to, this report is a new question.
  const bool is_over = answered.decision != known->decisions ||
                       (known->verdict && known->verdict->epoch != known->epoch) ||
                       AreAsking(report.name, report.uid);
  if (is_over || report.job != answered.question) return false;
  answered.node = node;
  SendVerdict(node, report, *known);
  return true;
}

void LedQuorums::Handle(NodeId node, const ReportQuorum& report) {
  if (jobs_.nodes().at(node).facts.server || IsAnswered(node, report)) return;
  std::uint64_t number = Find(report.name, report.uid);
  if (number == 0) {
    // Fair share: a question of the same user counts twice against both limits.
    std::size_t taken = 0;
    std::size_t taken_of_node = 0;
    for (const auto& [other, each] : quorums_) {
      const std::size_t counts = each.uid == report.uid ? 2 : 1;
      taken += counts;
      if (each.reports.contains(node)) taken_of_node += counts;
    }
    const bool has_room = jobs_.options().in_process || taken_of_node < kJobsOfNodeMax;
    if (taken >= kJobsLedMax || !has_room) {
      return Refuse(node, report, Code::kBusy,
                    fmt::format("{} jobs ask the service on node {} who is left of them, more are "
                                "not supported at a time: ask again when one of them is answered",
                                quorums_.size(), jobs_.options().node_name));
    }
    number = ++opened_;
    quorums_.emplace(
        number, Question{.name = report.name, .uid = report.uid, .reports = {}, .announced = {}});
  }
  Question& question = quorums_.at(number);
  // A service that has reconnected is represented by its latest report only.
  std::erase_if(question.reports, [this, node](const auto& entry) {
    return entry.first != node && ServiceOf(entry.first) == ServiceOf(node);
  });
  question.reports.insert_or_assign(node, report);
  ShowPlaces(node, report);
  question.joins = std::ranges::any_of(question.reports, [](const auto& entry) {
    return std::ranges::find(entry.second.members, MemberState::kJoins, &MemberReport::state) !=
           entry.second.members.end();
  });
  RefuseLeftOut(node, report, ViewOf(question));
  Evaluate(number, kNoTime);
}

void LedQuorums::ShowPlaces(NodeId node, const ReportQuorum& report) {
  const JobPlaces* known = jobs_.directory().Find({report.name, report.uid});
  // The leader and the follower of one service share a directory.
  if (known == nullptr || known->places.empty() || known->epoch <= report.places_epoch ||
      jobs_.nodes().at(node).facts.name == jobs_.options().node_name) {
    return;
  }
  JobPlaces shown = *known;
  shown.HideOwn(jobs_.options().node_name);
  jobs_.SendTo(node, AnnounceJobPlaces{.job = report.job, .places = std::move(shown)});
}

void LedQuorums::Handle(NodeId node, const ReportJobPlaces& report) {
  // A job that runs here is known best here. Reports of other places come from members that have
  // split from it.
  const bool runs = std::ranges::any_of(jobs_.all(), [&report](const auto& entry) {
    return entry.second.name == report.name && entry.second.uid == report.uid &&
           entry.second.phase == LedJob::Phase::kRunning;
  });
  if (runs) return;
  const LedJobs::Node& from = jobs_.nodes().at(node);
  JobPlaces places = report.places;
  places.ShowOwn({.node = from.facts.name, .address = from.control});
  const std::uint64_t before = jobs_.directory().changes();
  jobs_.directory().OnReported({report.name, report.uid}, std::move(places));
  const std::uint64_t number = Find(report.name, report.uid);
  if (number == 0 || jobs_.directory().changes() == before) return;
  Question& question = quorums_.at(number);
  const View view = ViewOf(question);
  for (const auto& [other, each] : question.reports) {
    ShowPlaces(other, each);
    RefuseLeftOut(other, each, view);
  }
  question.changed = true;
}

void LedQuorums::CallMembers() {
  for (auto& [opened, question] : quorums_) {
    if (!question.joins) continue;
    for (const auto& [number, job] : jobs_.all()) {
      if (job.name != question.name || job.uid != question.uid || question.called == number ||
          job.phase != LedJob::Phase::kRunning) {
        continue;
      }
      question.called = number;
      for (const LedJob::Participant& participant : job.participants) {
        if (!participant.server && !participant.forgot)
          jobs_.Send(participant, AnnounceMembersWait{participant.number});
      }
    }
  }
}

WaitingApplicants LedQuorums::CountApplicants(std::string_view name, std::uint32_t uid) const {
  WaitingApplicants waiting;
  const auto count = [](std::uint32_t& counted) {
    counted = std::min(counted + 1, WaitingApplicants::kCountMax);
  };
  for (const auto& [number, question] : quorums_) {
    if (question.name != name || question.uid != uid) continue;
    for (const auto& [node, report] : question.reports) {
      for (const MemberReport& each : report.members) {
        if (each.state == MemberState::kJoins) count(waiting.joiners);
        if (each.state == MemberState::kSpare) count(waiting.spares);
      }
    }
  }
  return waiting;
}

void LedQuorums::ShowApplicants() {
  std::erase_if(shown_, [this](const auto& entry) { return !jobs_.all().contains(entry.first); });
  if (quorums_.empty() && shown_.empty()) return;
  for (const auto& [number, job] : jobs_.all()) {
    if (job.phase != LedJob::Phase::kRunning) continue;
    const WaitingApplicants waiting = CountApplicants(job.name, job.uid);
    const auto shown = shown_.find(number);
    if (waiting == (shown == shown_.end() ? WaitingApplicants() : shown->second)) continue;
    shown_.insert_or_assign(number, waiting);
    const Steering steering{
        .kind = SteeringKind::kApplicants, .value = waiting.Value(), .uid = job.uid, .node = {}};
    for (const LedJob::Participant& participant : job.participants) {
      if (participant.server || participant.forgot) continue;
      jobs_.Send(participant, AnnounceSteering{.job = participant.number, .steering = steering});
    }
  }
}

void LedQuorums::Handle(NodeId node, const LeaveQuorum& leave) {
  for (auto& [number, question] : quorums_) {
    const auto found = question.reports.find(node);
    if (found == question.reports.end() || found->second.job != leave.job) continue;
    question.reports.erase(found);
    question.announced.erase(node);
    if (question.reports.empty()) {
      quorums_.erase(number);
    } else {
      question.changed = true;
    }
    return;
  }
}

void LedQuorums::OnNodeDown(NodeId node) {
  for (auto at = quorums_.begin(); at != quorums_.end();) {
    Question& question = at->second;
    question.announced.erase(node);
    if (question.reports.erase(node) != 0) question.changed = true;
    at = question.reports.empty() ? quorums_.erase(at) : std::next(at);
  }
}

TimeNs LedQuorums::NextDeadline() const {
  TimeNs next = kNever;
  for (const auto& [number, question] : quorums_) {
    if (question.changed) return 0;
    for (const auto& [member, grace] : question.graces) {
      if (!grace.over) next = std::min(next, grace.until_ns);
    }
  }
  return next;
}

void LedQuorums::Expire(TimeNs now) {
  std::vector<std::uint64_t> due;
  for (const auto& [number, question] : quorums_) {
    const bool is_due = std::ranges::any_of(question.graces, [now](const auto& entry) {
      return !entry.second.over && now >= entry.second.until_ns;
    });
    if (question.changed || is_due) due.push_back(number);
  }
  for (const std::uint64_t number : due) Evaluate(number, now);
}

LedQuorums::View LedQuorums::ViewOf(const Question& question) const {
  View view;
  if (const Known* known = FindKnown(question.name, question.uid); known != nullptr) {
    view.epoch = known->epoch;
  }
  if (const JobPlaces* places = jobs_.directory().Find({question.name, question.uid});
      places != nullptr) {
    view.membership = places->membership;
    view.epoch = std::max(view.epoch, places->epoch);
  }
  const std::uint32_t decided = view.membership.generation;
  for (const auto& [node, report] : question.reports) {
    view.epoch = std::max(view.epoch, report.epoch);
    view.rules.min_world = std::max(view.rules.min_world, report.rules.min_world);
    view.rules.grace_ms = std::max(view.rules.grace_ms, report.rules.grace_ms);
    view.rules.stall_ms = std::max(view.rules.stall_ms, report.rules.stall_ms);
    // If two decisions have the same generation, the one in this service's directory counts.
    const bool same = report.membership.generation == decided && decided != 0;
    if (!same && IsNewer(report.membership, view.membership)) view.membership = report.membership;
    const bool asks = std::ranges::find(report.members, MemberState::kAsks, &MemberReport::state) !=
                      report.members.end();
    if (asks && !report.meets_here) view.elsewhere.push_back(jobs_.nodes().at(node).facts.name);
    for (const MemberReport& each : report.members) {
      if (!IsApplicant(each.state)) continue;
      view.applicants.push_back(
          {.node = node, .number = each.member, .spare = each.state == MemberState::kSpare});
    }
  }
  for (const std::uint32_t member : view.membership.members) {
    const MemberReport* best = nullptr;
    for (const auto& [node, report] : question.reports) {
      const MemberReport* found = FindMember(report, member);
      if (found != nullptr && (best == nullptr || found->state < best->state)) best = found;
    }
    if (best == nullptr) {
      view.unknown.push_back(member);
    } else if (best->state == MemberState::kAsks) {
      view.asking.push_back(member);
    } else if (best->state == MemberState::kAttached) {
      view.attached.push_back(member);
    } else {
      view.lost.push_back({.member = member, .cause = best->cause});
    }
  }
  return view;
}

std::string LedQuorums::DescribeWait(const Question& question, const View& view) const {
  const bool runs = std::ranges::any_of(jobs_.all(), [&](const auto& entry) {
    const LedJob& job = entry.second;
    return job.name == question.name && job.uid == question.uid &&
           job.phase == LedJob::Phase::kRunning;
  });
  if (!runs && view.asking.empty() && view.attached.empty()) {
    return fmt::format(
        "a running job {}, and node {} leads none: check its name, its user and the "
        "rendezvous, or start its ranks",
        question.name, jobs_.options().node_name);
  }
  if (view.asking.empty()) {
    return fmt::format("the ranks of job {} to let others in, which they do between two iterations",
                       question.name);
  }
  std::vector<std::string> waits;
  if (!view.elsewhere.empty()) {
    waits.push_back(fmt::format("{} to find out that no service before that on node {} lives",
                                NodeList(view.elsewhere), jobs_.options().node_name));
  }
  if (!view.attached.empty()) {
    waits.push_back(ListMembers("still to notice that the job was lost", view.attached));
  }
  if (!view.unknown.empty()) {
    waits.push_back(ListMembers("of which nothing is known", view.unknown));
  }
  return fmt::format("{} of {} members of job {} have come: waiting for {}", view.asking.size(),
                     view.membership.members.size(), question.name, fmt::join(waits, " and "));
}

// Tells the waiting members what the question waits for, also those that ask later.
void LedQuorums::AnnounceWaits(Question& question, const View& view) {
  const std::string text = DescribeWait(question, view);
  for (const auto& [node, report] : question.reports) {
    const bool asks = std::ranges::any_of(report.members, [](const MemberReport& each) {
      return each.state == MemberState::kAsks || IsApplicant(each.state);
    });
    if (!asks || std::exchange(question.announced[node], text) == text) continue;
    jobs_.SendTo(node, AnnounceQuorumWaits{.job = report.job, .text = text});
  }
}

void LedQuorums::Evaluate(std::uint64_t number, TimeNs now) {
  Question& question = quorums_.at(number);
  View view = ViewOf(question);
  question.changed = false;
  // No grace times while no member asks.
  const auto has_grace = [&view](std::uint32_t member, const Question::Grace& grace) {
    return std::ranges::count(grace.attached ? view.attached : view.unknown, member) != 0;
  };
  std::erase_if(question.graces, [&](const auto& entry) {
    return view.asking.empty() || !has_grace(entry.first, entry.second);
  });
  bool waits = view.asking.empty() || !view.elsewhere.empty();
  const auto wait_for = [&](const std::vector<std::uint32_t>& members, std::uint32_t grace_ms,
                            bool attached) {
    for (const std::uint32_t member : members) {
      Question::Grace& grace = question.graces[member];
      grace.attached = attached;
      if (now != kNoTime) {
        if (grace.until_ns == 0) grace.until_ns = now + grace_ms * kMillisecond;
        grace.over = now >= grace.until_ns;
      }
      waits = waits || !grace.over;
    }
  };
  if (!view.asking.empty()) wait_for(view.unknown, view.rules.grace_ms, false);
  const bool limited = view.rules.stall_ms != 0;
  if (!view.asking.empty() && limited) wait_for(view.attached, view.rules.stall_ms, true);
  waits = waits || (!view.attached.empty() && !limited);
  // Without a running grace time only a new report can change the result.
  if (waits) return AnnounceWaits(question, view);
  for (const std::uint32_t member : view.unknown) {
    view.lost.push_back(
        {.member = member, .cause = fmt::format("has not come within {} ms", view.rules.grace_ms)});
  }
  for (const std::uint32_t member : view.attached) {
    view.lost.push_back({.member = member,
                         .cause = fmt::format("stands still: it is attached, and has not come "
                                              "within {} ms",
                                              view.rules.stall_ms)});
  }
  Decide(question, std::move(view));
  quorums_.erase(number);
}

// Services whose connections are gone may have missed the last decision, so it is kept for them.
// Earlier decisions are not kept.
void LedQuorums::NoteAnswered(Known& known, const Question& question) {
  ++known.decisions;
  std::erase_if(known.answered,
                [this](const auto& entry) { return !jobs_.nodes().contains(entry.second.node); });
  for (const auto& [node, report] : question.reports) {
    known.answered[ServiceOf(node)] = {
        .node = node, .question = report.job, .decision = known.decisions};
  }
}

void LedQuorums::SendVerdict(NodeId node, const ReportQuorum& report, const Known& known) {
  if (known.verdict) {
    Quorum quorum = *known.verdict;
    quorum.admitted = known.answered.at(ServiceOf(node)).admitted;
    jobs_.SendTo(node, AnnounceQuorum{.job = report.job, .quorum = std::move(quorum)});
  } else {
    Refuse(node, report, known.verdict.error().code(), known.verdict.error().text());
  }
}

void LedQuorums::Decide(const Question& question, View view) {
  Known& known = Remember(question.name, question.uid);
  NoteAnswered(known, question);
  known.verdict = Judge(question, view);
  if (known.verdict) {
    known.epoch = known.verdict->epoch;
    const JobDirectory::JobKey job{question.name, question.uid};
    const JobPlaces* before = jobs_.directory().Find(job);
    JobPlaces decided = before == nullptr ? JobPlaces{} : *before;
    decided.membership = known.verdict->membership;
    decided.epoch = known.epoch;
    jobs_.directory().Note(job, std::move(decided));
    for (const Applicant& each : view.applicants) {
      if (each.member == 0) continue;
      known.answered.at(ServiceOf(each.node))
          .admitted.push_back({.applicant = each.number, .member = each.member});
    }
  }
  for (const auto& [node, report] : question.reports) SendVerdict(node, report, known);
}

void LedQuorums::Admit(View& view, std::uint32_t first_new) {
  std::size_t places = transport::kMembersMax - view.asking.size();
  std::size_t lost = view.lost.size();
  std::uint32_t next = std::max(first_new, view.asking.back() + 1);
  for (const bool spares : {false, true}) {
    for (Applicant& each : view.applicants) {
      if (each.spare != spares || places == 0 || (spares && lost == 0)) continue;
      each.member = next++;
      view.asking.push_back(each.member);
      --places;
      lost -= std::min<std::size_t>(lost, 1);
    }
  }
}

Result<Quorum> LedQuorums::Judge(const Question& question, View& view) {
  std::ranges::sort(view.lost, {}, &LostMember::member);
  HR_CHECK(!view.asking.empty() &&
               view.asking.size() + view.lost.size() == view.membership.members.size(),
           question.name, view.asking.size(), view.lost.size());
  // No correct service counts epochs this far.
  const std::uint32_t generation = view.membership.generation + 1;
  const std::uint64_t last_new = std::uint64_t{view.asking.back()} + transport::kMembersMax;
  if (view.epoch + 1 >= kEpochMax || generation + 1 >= kEpochMax / transport::kMembersMax ||
      last_new >= kEpochMax) {
    return Error(Code::kInvalidArgument,
                 fmt::format("job {} has come to epoch {}: give it another name", question.name,
                             view.epoch));
  }
  const std::size_t left = view.asking.size();
  Admit(view, Quorum::FirstNew(generation));
  if (view.asking.size() < view.rules.min_world) {
    for (Applicant& each : view.applicants) each.member = 0;
    return Error(Code::kMismatch,
                 fmt::format("{} of {} ranks of job {} are left, and it may go on with {} "
                             "(min_world): end all ranks "
                             "of the job, and start them again from a checkpoint. Lost are {}",
                             left, view.membership.members.size(), question.name,
                             view.rules.min_world, DescribeLost(view.lost)));
  }
  return Quorum{.membership = {.generation = generation, .members = std::move(view.asking)},
                .epoch = view.epoch + 1,
                .lost = std::move(view.lost)};
}

}  // namespace headrace::service
