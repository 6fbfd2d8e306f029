// A node's side of quorums: which members of a lost job this node knows, which of them ask who is
// left of the job, and what the leaders answer. Runs on the thread of its owner. Pure: no clock, no
// network, no log.
//
// A member asks over a connection of its own, repeatedly, and keeps its place while the connection
// lasts; then it attaches over the same connection. Leases tell how a member's session or process
// ended, so nobody waits for a dead one. A node reports as soon as a job with reconnecting ranks is
// lost, even if none of its ranks has noticed: a rank that is busy between two iterations must not
// count as lost.
//
// The question goes to every service of the job that can be reached (quorum_places.h), so that the
// job can continue without its leader. A decision is sent to all of them.
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
#include "service/cluster/asked_services.h"
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

// How long a node keeps reporting its lost members when none of them is left to ask.
inline constexpr TimeNs kLostMembersToldNs = 10 * kSecond;
// Limit of rendezvous that ranks name beyond the known places of their job; further ones are not
// asked.
inline constexpr std::size_t kOtherPlacesMax = 4;

class FollowedQuorums {
 public:
  using JobKey = JobDirectory::JobKey;

  // `jobs` must outlive this. It keeps the connections to leaders and sends the messages.
  explicit FollowedQuorums(FollowedJobs& jobs) : jobs_(jobs) {}

  // ---- from the leases ----
  void OnRankAttached(const SessionIdentity& identity);
  void OnLeaseEnded(const SessionIdentity& identity, bool orderly, const std::string& cause,
                    bool exited);

  // Called after the leases have handled it.
  void OnJobLost(const LostJob& lost);

  // ---- from clients ----
  // Answered by QuorumAnswered at `until_ns` at the latest.
  void Handle(const AskQuorum& message);
  // The client's connection is closed; its process may live.
  void Handle(const QuorumClientLost& message);

  // ---- from the leader ----
  void Handle(const std::string& leader, const AnnounceQuorumWaits& message);
  void Handle(const std::string& leader, const AnnounceQuorum& message);
  void Handle(const std::string& leader, const AnnounceQuorumRefused& message);
  void Handle(const std::string& leader, const AnnounceJobPlaces& message);
  void OnLeaderUp(const std::string& leader);
  void OnLeaderDown(const std::string& leader, const std::string& cause);
  // Connecting to the leader failed and is retried.
  void OnLeaderUnreachable(const std::string& leader, const std::string& cause);
  void OnLeaderRefused(const std::string& leader, const Error& error);

  void OnJobRunning(const JobKey& key);
  // The directory may have changed.
  void RefreshPlaces();
  // Whether the rank attaches by a decision whose epoch has not begun yet.
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
  // Records where the job of the member was, as its client has kept it.
  void NotePlaces(const AskQuorum& message);
  Questions::iterator Add(const JobKey& key, std::set<std::string> rendezvous);
  void MoveTo(Question& question, std::vector<QuorumPlace> places);
  // The services that the question may go to now.
  std::vector<QuorumPlace> PlacesFor(Question& question);
  // Asks these services, and reports the question again if they are others than before.
  void RefreshPlacesOf(std::uint32_t number, Question& question);
  // Reports the question again if its meeting place has changed.
  void CheckMeeting(std::uint32_t number, Question& question);
  void Leave(Questions::iterator question);
  void Report(std::uint32_t number, Question& question);
  // Sends the place what this node knows of the job's places.
  void Inform(const Question& question, QuorumPlace& place);
  // Sends the decision of `leader` to all other places.
  void Spread(Question& question, const std::string& leader, const Quorum& quorum);
  void ReportIfAsked(const JobKey& key);
  // Refuses askers that are not in the newest membership that any asker was in.
  void RefuseLeftOut(Question& question);
  void Answer(Asker& asker, Result<Quorum> result);
  void Close(Questions::iterator question, const Result<Quorum>& result);
  void Erase(Questions::iterator question);

  FollowedJobs& jobs_;
  KnownMembers members_;
  Questions questions_;
  // Answers for clients that have not asked again yet, by connection.
  std::map<std::uint64_t, Result<Quorum>> answers_;
  AskedServices asked_services_;         // by all questions
  std::uint64_t places_known_ = 0;       // JobDirectory::changes that the questions have seen
  std::set<std::uint32_t> have_room_{};  // users who may ask more services than before
  std::uint32_t asked_ = 0;
  std::uint32_t applied_ = 0;
};

}  // namespace headrace::service
