// A node's part in finding out who is left of a job: what it knows of the job's members, who of
// them asks, and what the leader answers. Pure: no clock, no network, no log.
//
// Whoever asks does so over a connection of its own, again and again, and keeps its place while the
// connection lasts; then it attaches over the same connection. What a member's session or process
// came to is known from the leases, so that a dead one is waited for by nobody. A node says it as
// soon as a job is lost that goes on, whether or not a rank of it has noticed: nobody is taken for
// lost who is busy between two iterations.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ipc/base/clock.h"
#include "service/cluster/followed_jobs.h"
#include "service/cluster/peer_messages.h"
#include "service/peers/messages.h"
#include "service/rpc/messages.h"
#include "service/session/quorum.h"
#include "service/session/session.h"
#include "transport/transport.h"

namespace headrace::service {

// Jobs whose members a node remembers; beyond that the oldest are forgotten, whose lost members are
// then waited for through the grace time.
inline constexpr std::size_t kJobsRememberedMax = 256;
// Members of one of them; beyond that the first that is not attached is forgotten.
inline constexpr std::size_t kMembersRememberedMax = 4 * transport::kMembersMax;
// Questions that are open at a time.
inline constexpr std::size_t kQuorumsAskedMax = 256;
// For how long a node goes on to say what became of its members when none of them is left to ask.
inline constexpr TimeNs kLostMembersToldNs = 10 * kSecond;

class FollowedQuorums {
 public:
  // Outlives this; keeps the leaders' connections and sends what is to be said.
  explicit FollowedQuorums(FollowedJobs& jobs) : jobs_(jobs) {}

  // ---- from the leases ----
  void OnRankAttached(const SessionIdentity& identity);
  void OnLeaseEnded(const SessionIdentity& identity, bool orderly, const std::string& cause,
                    bool exited);

  // After the leases' share of it.
  void OnJobLost(const LostJob& lost);

  // ---- from clients ----
  // Answered by QuorumAnswered, by `until_ns` at the latest.
  void Handle(const AskQuorum& message);
  // The connection is gone, with its process or not.
  void Handle(const QuorumClientLost& message);

  // ---- from the leader ----
  void Handle(const std::string& leader, const AnnounceQuorumWaits& message);
  void Handle(const std::string& leader, const AnnounceQuorum& message);
  void Handle(const std::string& leader, const AnnounceQuorumRefused& message);
  void OnLeaderUp(const std::string& leader);
  void OnLeaderDown(const std::string& leader, const std::string& cause);
  void OnLeaderRefused(const std::string& leader, const Error& error);

  TimeNs NextDeadline() const;
  void Expire(TimeNs now);

  std::size_t count() const { return questions_.size(); }

 private:
  using JobKey = std::pair<std::string, std::uint32_t>;  // name and uid
  struct Member {
    SessionId session;  // that it has, if it is attached
    std::string lost;   // why; empty: it is not
  };
  // What the leases have told of a job's members.
  struct Remembered {
    JobKey key;
    std::uint32_t epoch = 0;
    std::map<std::uint32_t, Member> members;
  };
  struct Asker {
    std::uint64_t client = 0;
    AskQuorum ask;         // the last
    bool waiting = false;  // for an answer to it
  };
  struct Question {
    JobKey key;
    std::string leader;
    std::string waits;
    std::map<std::uint32_t, Asker> askers;      // by member; none: nobody has noticed yet
    std::map<std::uint32_t, Asker> applicants;  // by their numbers
    // Without askers, and when no member is attached any more: until when it is kept. kNever: it is
    // not so; 0: that begins with the next look.
    TimeNs until_ns = kNever;
  };
  using Questions = std::map<std::uint32_t, Question>;

  Remembered* Find(const JobKey& key);
  Remembered& Remember(const JobKey& key);
  void ForgetOne();
  static void Note(Remembered& job, std::uint32_t number, Member member);
  Questions::iterator FindAsked(const JobKey& key);
  Questions::iterator Of(const std::string& leader, std::uint32_t number);
  Result<Questions::iterator> Open(const AskQuorum& message);
  void HandleApplicant(const AskQuorum& message);
  // The place of who asks by that connection, among the askers or the applicants.
  static std::map<std::uint32_t, Asker>::iterator FindClient(std::map<std::uint32_t, Asker>& askers,
                                                             std::uint64_t client);
  static bool IsUnasked(const Question& question) {
    return question.askers.empty() && question.applicants.empty();
  }
  Questions::iterator Add(const JobKey& key, const std::string& leader);
  void Leave(Questions::iterator question);
  bool HasAttached(const JobKey& key);
  std::optional<std::string> AskedBesides(const AskQuorum& message) const;
  void Report(std::uint32_t number, Question& question);
  void ReportIfAsked(const JobKey& key);
  // Those that are none of the newest membership that any of them was in were left out of it.
  void RefuseLeftOut(Question& question);
  void Answer(Asker& asker, Result<Quorum> result);
  void Close(Questions::iterator question, const Result<Quorum>& result);
  void Erase(Questions::iterator question);

  FollowedJobs& jobs_;
  std::deque<Remembered> remembered_;  // the newest last
  Questions questions_;
  // Answers to those who have not asked again yet, by their connections.
  std::map<std::uint64_t, Result<Quorum>> answers_;
  std::uint32_t asked_ = 0;
  std::uint32_t applied_ = 0;
};

}  // namespace headrace::service
