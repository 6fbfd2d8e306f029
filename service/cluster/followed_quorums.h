// A node's part in finding out who is left of a job: what it knows of the job's members, who of
// them asks, and what the leader answers. Pure: no clock, no network, no log.
//
// Whoever asks does so over a connection of its own, again and again, and keeps its place while the
// connection lasts; then it attaches over the same connection. What a member's session or process
// came to is known from the leases, so that a dead one is waited for by nobody. A node says it as
// soon as a job is lost that goes on, whether or not a rank of it has noticed: nobody is taken for
// lost who is busy between two iterations.
//
// The question goes to every service of the job that lives (quorum_places.h), so that the job goes
// on although its leader is gone; what is decided is told to all of them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ipc/base/clock.h"
#include "service/cluster/asked_question.h"
#include "service/cluster/followed_jobs.h"
#include "service/cluster/known_members.h"
#include "service/cluster/peer_messages.h"
#include "service/cluster/quorum_places.h"
#include "service/peers/messages.h"
#include "service/rpc/messages.h"
#include "service/session/quorum.h"
#include "service/session/session.h"
#include "transport/transport.h"

namespace headrace::service {

// Questions that are open at a time.
inline constexpr std::size_t kQuorumsAskedMax = 256;
// For how long a node goes on to say what became of its members when none of them is left to ask.
inline constexpr TimeNs kLostMembersToldNs = 10 * kSecond;
// Rendezvous that ranks name beside the places at which their job is known to live; one more is not
// asked.
inline constexpr std::size_t kOtherPlacesMax = 4;

class FollowedQuorums {
 public:
  using JobKey = JobDirectory::JobKey;

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
  void Handle(const std::string& leader, const AnnounceJobPlaces& message);
  void OnLeaderUp(const std::string& leader);
  void OnLeaderDown(const std::string& leader, const std::string& cause);
  // An attempt to reach it failed, and is made again.
  void OnLeaderUnreachable(const std::string& leader, const std::string& cause);
  void OnLeaderRefused(const std::string& leader, const Error& error);

  void OnJobRunning(const JobKey& key);
  // What is known of where jobs live may have changed.
  void RefreshPlaces();
  // Whether the rank attaches as a decision said, by which its job has not begun yet.
  bool WasDecided(const SessionIdentity& identity) const;

  TimeNs NextDeadline() const;
  void Expire(TimeNs now);

  std::size_t count() const { return questions_.size(); }

 private:
  using Asker = QuorumAsker;
  using Question = AskedQuestion;
  using Questions = std::map<std::uint32_t, Question>;

  KnownMembers::Job& Remember(const JobKey& key);
  Questions::iterator FindAsked(const JobKey& key);
  Questions::iterator Of(const std::string& leader, std::uint32_t number);
  Result<Questions::iterator> Open(const AskQuorum& message);
  void HandleApplicant(const AskQuorum& message);
  // The place of who asks by that connection, among the askers or the applicants.
  static std::map<std::uint32_t, Asker>::iterator FindClient(std::map<std::uint32_t, Asker>& askers,
                                                             std::uint64_t client);
  Questions::iterator Add(const JobKey& key, std::set<std::string> rendezvous);
  void MoveTo(Question& question, std::vector<QuorumPlace> places);
  // Reports it again if the node meets the others elsewhere now.
  void CheckMeeting(std::uint32_t number, Question& question);
  void Leave(Questions::iterator question);
  std::optional<std::string> AskedBesides(const AskQuorum& message) const;
  void Report(std::uint32_t number, Question& question);
  // To the place: what is known here of where the job lives.
  void Inform(const Question& question, QuorumPlace& place);
  // It was decided at `leader`: everybody else is told.
  void Spread(Question& question, const std::string& leader, const Quorum& quorum);
  void ReportIfAsked(const JobKey& key);
  // Those that are none of the newest membership that any of them was in were left out of it.
  void RefuseLeftOut(Question& question);
  void Answer(Asker& asker, Result<Quorum> result);
  void Close(Questions::iterator question, const Result<Quorum>& result);
  void Erase(Questions::iterator question);

  FollowedJobs& jobs_;
  KnownMembers members_;
  Questions questions_;
  // Answers to those who have not asked again yet, by their connections.
  std::map<std::uint64_t, Result<Quorum>> answers_;
  std::uint64_t places_known_ = 0;  // changes of the directory that the questions know
  std::uint32_t asked_ = 0;
  std::uint32_t applied_ = 0;
};

}  // namespace headrace::service
