// A quorum question of this node: its ranks have lost their job and ask which members remain. Has
// the members that ask, the services that are asked and what they have answered. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/error.h"
#include "ipc/base/result.h"
#include "service/cluster/asked_services.h"
#include "service/cluster/followed_jobs.h"
#include "service/cluster/known_members.h"
#include "service/cluster/peer_messages.h"
#include "service/cluster/quorum_places.h"
#include "service/peers/messages.h"
#include "service/rpc/messages.h"
#include "service/session/quorum.h"
#include "service/session/slow_rank.h"

namespace headrace::service {

// Limit of open questions.
inline constexpr std::size_t kQuorumsAskedMax = 256;

struct QuorumAsker {
  std::uint64_t client = 0;
  AskQuorum ask;         // the latest request
  bool waiting = false;  // whether it is unanswered
};

struct AskedQuestion {
  JobDirectory::JobKey key;
  std::set<std::string> rendezvous;  // named by the members that ask
  QuorumPlaces places;
  std::size_t left_out = 0;            // places beyond what the user may have, which count as gone
  std::string first_left_out{};        // the service at the first of these
  std::optional<std::size_t> meeting;  // index of the meeting place that was reported last
  std::string waits;
  std::map<std::uint32_t, QuorumAsker>
      askers;  // by member; empty: no member has noticed the loss yet
  std::map<std::uint32_t, QuorumAsker> applicants;  // by applicant number
  // When the question is dropped, if nobody asks and no member is attached any more. kNever: that
  // is not the case; 0: the next Expire sets the time.
  TimeNs until_ns = kNever;
};

inline bool IsUnasked(const AskedQuestion& question) {
  return question.askers.empty() && question.applicants.empty();
}
// The report of this question, without the places. `job` is what is known of the members; null if
// nothing is.
ReportQuorum DescribeMembers(std::uint32_t number, const AskedQuestion& question,
                             const KnownMembers::Job* job);
// The services to ask. `known` is where the job runs; null if that is unknown.
std::vector<QuorumPlace> PlacesOf(const JobPlaces* known, const std::set<std::string>& rendezvous,
                                  const FollowerOptions& options);
// The same, but as many as the user may have beside those of the other questions, which `others`
// are: if not even the first, those that the question has already. Sets what is left out.
std::vector<QuorumPlace> PlacesWithinLimit(AskedQuestion& question, const AskedServices& others,
                                           const JobPlaces* known, const FollowerOptions& options);
// Whether the user may open a question with that rendezvous beside the others, which go to `asked`.
Status CheckRoom(const std::map<std::uint32_t, AskedQuestion>& questions,
                 const AskedServices& asked, const JobDirectory::JobKey& key,
                 const std::string& rendezvous, const JobPlaces* known,
                 const FollowerOptions& options);
// The asker or applicant of that connection.
std::map<std::uint32_t, QuorumAsker>::iterator FindClient(
    std::map<std::uint32_t, QuorumAsker>& askers, std::uint64_t client);
// Another question or member for which this connection asks already. A connection may ask for one.
std::optional<std::string> AskedBesides(const std::map<std::uint32_t, AskedQuestion>& questions,
                                        const AskQuorum& message);
// What those who ask wait for.
std::string DescribeWaits(const AskedQuestion& question);
// The error for a member that a decision has excluded.
Error LeftOut(const std::string& job, std::uint32_t member);
// For how long members of a job with that bound are waited for that are attached and do not ask.
std::uint32_t StallOf(const SlowBound& bound);
// The sessions of this node whose members the decision has given up: they stand still.
std::vector<SessionBroken> EvictionsBy(const Quorum& quorum, const KnownMembers::Job* job);
// For the log and for events.
std::string DescribeDecision(const std::string& job, const Quorum& quorum);

}  // namespace headrace::service
