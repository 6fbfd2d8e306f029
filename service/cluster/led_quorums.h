// Who is left of a job, as its leader decides it: before any rank attaches again, and for all of
// them at once. Pure: no clock, no network, no log.
//
// Each node with ranks of the job says what it knows of the job's members, as soon as the job is
// lost or one of them asks. The question is open for as long as a member has a session that still
// has to notice the loss; one of which nothing is known is waited for through the grace time only.
// Then those that ask are the next membership, and everybody else is lost to the job for good: a
// member that was left out is refused by name.
//
// Every service of the job is asked, and each node with members says at which of them it meets the
// others: the first that lives of an order that all have. A service decides when all those that ask
// there say that it is this one; one that hears of a node that meets elsewhere leaves it to the
// other. Whoever has been told a decision tells it to all others, so that those who were left out
// are refused wherever they ask.
//
// Two halves of a job that cannot reach each other decide each for itself. Where that must not be,
// min_world is more than half of the world.
//
// Applicants are no members yet. A running job is told of those that want to join, and takes them
// in when all of its members ask; so does every decision after a loss. Spares come in as far as
// members are lost.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/result.h"
#include "service/cluster/led_jobs.h"
#include "service/cluster/peer_messages.h"
#include "service/session/quorum.h"

namespace headrace::service {

// Decisions that a leader remembers; beyond that the oldest are forgotten.
inline constexpr std::size_t kQuorumsRememberedMax = 64;

class LedQuorums {
 public:
  // Outlives this; sends what is to be said.
  explicit LedQuorums(LedJobs& jobs) : jobs_(jobs) {}

  void Handle(NodeId node, const ReportQuorum& report);
  void Handle(NodeId node, const LeaveQuorum& leave);
  void Handle(NodeId node, const ReportJobPlaces& report);
  void OnNodeDown(NodeId node);
  // Tells running jobs of those who want to join them, once each.
  void CallMembers();
  // The job has come so far: who goes on is in a later epoch.
  void OnEpochLost(const std::string& job, std::uint32_t uid, std::uint32_t epoch);
  // It begins anew.
  void Forget(std::string_view job, std::uint32_t uid);

  // When Expire is due; kNever: nothing waits for time.
  TimeNs NextDeadline() const;
  void Expire(TimeNs now);

  std::size_t count() const { return quorums_.size(); }

 private:
  struct Question {
    std::string name;
    std::uint32_t uid = 0;
    std::map<NodeId, ReportQuorum> reports;
    // Members of which nothing is known. One that becomes unknown later has a grace time of its
    // own: its connection may have closed because it is about to ask.
    struct Grace {
      TimeNs until_ns = 0;  // 0: begins with the next look that has a time
      bool over = false;
    };
    std::map<std::uint32_t, Grace> graces{};
    bool changed = false;      // what it stands on has gone: to be looked at by Expire
    bool joins = false;        // somebody wants to be a member
    std::uint64_t called = 0;  // the job whose ranks were told so; 0: none's
    std::map<NodeId, std::string> announced;  // what it waits for, as each node was told
  };
  // A service from its start to its end, whatever connections it has had: its name and instance.
  using Service = std::pair<std::string, std::uint64_t>;
  // The last question of a service that was answered. What it said of that before it had the answer
  // comes later over the same connection, and is no new question; where it is said over another,
  // the answer was lost with the first.
  struct Answered {
    NodeId node = 0;  // to whom: of its connection
    std::uint32_t question = 0;
    std::uint32_t decision = 0;  // by which, of Known::decisions
    std::vector<Admission> admitted{};
  };
  struct Known {
    std::string name;
    std::uint32_t uid = 0;
    std::uint32_t epoch = 0;
    std::uint32_t decisions = 0;        // how many there were
    Result<Quorum> verdict = Quorum{};  // of the last
    std::map<Service, Answered> answered;
  };
  struct Applicant {
    NodeId node = 0;
    std::uint32_t number = 0;  // the node's
    bool spare = false;
    std::uint32_t member = 0;  // that it has become; 0: it has not
  };
  // What is known of the members, one by one.
  struct View {
    Membership membership;  // that is asked about
    std::uint32_t epoch = 0;
    QuorumRules rules;
    std::vector<std::uint32_t> asking;
    std::vector<std::uint32_t> attached;
    std::vector<std::uint32_t> unknown;
    std::vector<LostMember> lost;
    std::vector<Applicant> applicants;
    std::vector<std::string> elsewhere;  // nodes with members that ask, and do not meet here
  };

  std::uint64_t Find(const std::string& name, std::uint32_t uid) const;  // 0: there is none
  // Whether somebody waits for an answer.
  bool AreAsking(const std::string& name, std::uint32_t uid) const;
  const Known* FindKnown(std::string_view name, std::uint32_t uid) const;
  Known& Remember(const std::string& name, std::uint32_t uid);
  void ForgetOne();
  View ViewOf(const Question& question) const;
  // Decides it, or says what it waits for; the question may be gone afterwards.
  void Look(std::uint64_t number, TimeNs now);
  void Decide(const Question& question, View view);
  static Result<Quorum> Judge(const Question& question, View& view);
  // Into the membership, as far as there is room and, for spares, a lost member's place.
  static void Admit(View& view, std::uint32_t first_new);
  void NoteAnswered(Known& known, const Question& question);
  void SendVerdict(NodeId node, const ReportQuorum& report, const Known& known);
  // Whether the report is of a question that was answered; the answer is sent again if it was lost.
  bool IsAnswered(NodeId node, const ReportQuorum& report);
  Service ServiceOf(NodeId node) const;
  std::string DescribeWait(const Question& question, const View& view) const;
  void AnnounceWaits(Question& question, const View& view);
  // Where the job is said to live, to a node that does not know it.
  void ShowPlaces(NodeId node, const ReportQuorum& report);
  // A member that was left out before may not come back.
  void RefuseLeftOut(NodeId node, const ReportQuorum& report, const View& view);
  // `members`: those of the node's; none: all, and the question is over.
  void Refuse(NodeId node, const ReportQuorum& report, Code code, std::string cause,
              std::vector<std::uint32_t> members = {});

  LedJobs& jobs_;
  std::uint64_t opened_ = 0;
  std::map<std::uint64_t, Question> quorums_;
  std::deque<Known> known_;  // the newest last
};

}  // namespace headrace::service
