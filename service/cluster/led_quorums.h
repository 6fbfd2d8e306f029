// The leader's side of quorums: decides which members of a lost job form the next epoch. It decides
// once for all members, before any of their ranks attaches again. Runs on the thread of its owner.
// Pure: no clock, no network, no log.
//
// Each node with ranks of the job reports what it knows of the members as soon as the job is lost
// or a member asks. The question stays open while some member has a session that has not noticed
// the loss yet. A member of which nothing is known is waited for until its grace time ends. Then
// the members that ask form the next membership. All others are lost to the job for good: if one
// comes later, it is refused by name.
//
// Every service of the job is asked. Each node with members reports its meeting place: the first
// reachable service in an order that all nodes share. A service decides when it is the meeting
// place of every node that asks it. If some node meets elsewhere, it leaves the decision to that
// service. A node that gets a decision passes it on to all other services, so that excluded members
// are refused wherever they ask.
//
// Two halves of a job that cannot reach each other decide separately. A min_world of more than half
// of the world prevents that.
//
// Applicants are not members yet. A running job is notified of those that wait to join; they are
// admitted when all of its members ask, and by every decision after a loss. Spares are admitted
// only in the place of lost members.
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

// Decisions that a leader keeps; the oldest are dropped first.
inline constexpr std::size_t kQuorumsRememberedMax = 64;

class LedQuorums {
 public:
  // `jobs` must outlive this. It sends the messages.
  explicit LedQuorums(LedJobs& jobs) : jobs_(jobs) {}

  void Handle(NodeId node, const ReportQuorum& report);
  void Handle(NodeId node, const LeaveQuorum& leave);
  void Handle(NodeId node, const ReportJobPlaces& report);
  void OnNodeDown(NodeId node);
  // Notifies each running job once that applicants want to join it.
  void CallMembers();
  // Sends the number of waiting applicants to the nodes of running jobs if it has changed.
  void ShowApplicants();
  // The job has reached this epoch: members that continue need a later one.
  void OnEpochLost(const std::string& job, std::uint32_t uid, std::uint32_t epoch);
  // The job starts from the beginning: its decisions are void.
  void Forget(std::string_view job, std::uint32_t uid);

  // When Expire is due; kNever if no grace time runs.
  TimeNs NextDeadline() const;
  void Expire(TimeNs now);

  std::size_t count() const { return quorums_.size(); }

 private:
  struct Question {
    std::string name;
    std::uint32_t uid = 0;
    std::map<NodeId, ReportQuorum> reports;
    // Grace times of members of which nothing is known, and, where the job evicts those that stand
    // still, of attached ones that do not ask. A member that becomes unknown later gets a
    // full grace time, because its connection may have closed just before it asks.
    struct Grace {
      TimeNs until_ns = 0;  // 0: set by the next Expire
      bool over = false;
      bool attached = false;
    };
    std::map<std::uint32_t, Grace> graces{};
    bool changed = false;      // a report was withdrawn: Expire evaluates the question
    bool joins = false;        // there are applicants that want to join
    std::uint64_t called = 0;  // number of the job that was notified of it; 0: none
    std::map<NodeId, std::string> announced;  // the wait text last sent to each node
  };
  // Identifies a run of a service across its connections: name and instance.
  using Service = std::pair<std::string, std::uint64_t>;
  // The last answered question of a service. A report of this question that arrives later over the
  // same connection was sent before the answer and is ignored. Over another connection it means
  // that the answer was lost, and the answer is sent again.
  struct Answered {
    NodeId node = 0;  // the connection over which it was answered
    std::uint32_t question = 0;
    std::uint32_t decision = 0;  // value of Known::decisions at the answer
    std::vector<Admission> admitted{};
  };
  struct Known {
    std::string name;
    std::uint32_t uid = 0;
    std::uint32_t epoch = 0;
    std::uint32_t decisions = 0;        // number of decisions so far
    Result<Quorum> verdict = Quorum{};  // the last decision
    std::map<Service, Answered> answered;
  };
  struct Applicant {
    NodeId node = 0;
    std::uint32_t number = 0;  // assigned by the node
    bool spare = false;
    std::uint32_t member = 0;  // the member that it has become; 0: none yet
  };
  // The reports of all nodes, merged.
  struct View {
    Membership membership;  // the newest that any report has
    std::uint32_t epoch = 0;
    QuorumRules rules;
    std::vector<std::uint32_t> asking;
    std::vector<std::uint32_t> attached;
    std::vector<std::uint32_t> unknown;
    std::vector<LostMember> lost;
    std::vector<Applicant> applicants;
    std::vector<std::string> elsewhere;  // nodes that ask and meet at another service
  };

  std::uint64_t Find(const std::string& name, std::uint32_t uid) const;  // 0 if there is none
  WaitingApplicants CountApplicants(std::string_view name, std::uint32_t uid) const;
  // Whether a member of the job waits for an answer.
  bool AreAsking(const std::string& name, std::uint32_t uid) const;
  const Known* FindKnown(std::string_view name, std::uint32_t uid) const;
  Known& Remember(const std::string& name, std::uint32_t uid);
  void ForgetOne();
  View ViewOf(const Question& question) const;
  // Decides the question or announces what it waits for. May erase the question.
  void Evaluate(std::uint64_t number, TimeNs now);
  void Decide(const Question& question, View view);
  static Result<Quorum> Judge(const Question& question, View& view);
  // Adds applicants to the membership while there is room; spares only in place of lost members.
  static void Admit(View& view, std::uint32_t first_new);
  void NoteAnswered(Known& known, const Question& question);
  void SendVerdict(NodeId node, const ReportQuorum& report, const Known& known);
  // Whether the reported question was answered already. Sends a lost answer again.
  bool IsAnswered(NodeId node, const ReportQuorum& report);
  Service ServiceOf(NodeId node) const;
  std::string DescribeWait(const Question& question, const View& view) const;
  void AnnounceWaits(Question& question, const View& view);
  // Sends the known places of the job to a node that has older ones.
  void ShowPlaces(NodeId node, const ReportQuorum& report);
  // Refuses members that an earlier decision has excluded.
  void RefuseLeftOut(NodeId node, const ReportQuorum& report, const View& view);
  // `members`: the members of this node to refuse; empty: all, which ends the question.
  void Refuse(NodeId node, const ReportQuorum& report, Code code, std::string cause,
              std::vector<std::uint32_t> members = {});

  LedJobs& jobs_;
  std::uint64_t opened_ = 0;
  std::map<std::uint64_t, Question> quorums_;
  std::deque<Known> known_;  // oldest first
  // The numbers of applicants last sent to the nodes of each job, by the job's number.
  std::map<std::uint64_t, WaitingApplicants> shown_;
};

}  // namespace headrace::service
