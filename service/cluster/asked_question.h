// A question that ranks of this node ask, who is left of their job: who asks, where, and what the
// node says of it. Plain values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/error.h"
#include "service/cluster/followed_jobs.h"
#include "service/cluster/known_members.h"
#include "service/cluster/peer_messages.h"
#include "service/cluster/quorum_places.h"
#include "service/peers/messages.h"
#include "service/session/quorum.h"

namespace headrace::service {

struct QuorumAsker {
  std::uint64_t client = 0;
  AskQuorum ask;         // the last
  bool waiting = false;  // for an answer to it
};

struct AskedQuestion {
  JobDirectory::JobKey key;
  std::set<std::string> rendezvous;  // that those who ask have named
  QuorumPlaces places;
  std::optional<std::size_t> meeting;  // of the places, as it was reported last
  std::string waits;
  std::map<std::uint32_t, QuorumAsker> askers;      // by member; none: nobody has noticed yet
  std::map<std::uint32_t, QuorumAsker> applicants;  // by their numbers
  // Without askers, and when no member is attached any more: until when it is kept. kNever: it is
  // not so; 0: that begins with the next look.
  TimeNs until_ns = kNever;
};

inline bool IsUnasked(const AskedQuestion& question) {
  return question.askers.empty() && question.applicants.empty();
}
// What is reported of it, but for where; `job`: what is known of its members, null for nothing.
ReportQuorum DescribeMembers(std::uint32_t number, const AskedQuestion& question,
                             const KnownMembers::Job* job);
// Where it is asked; `known`: where its job lives, null where that is not known.
std::vector<QuorumPlace> PlacesOf(const JobPlaces* known, const std::set<std::string>& rendezvous,
                                  const FollowerOptions& options);
// To a member that a decision has left out.
Error LeftOut(const std::string& job, std::uint32_t member);
// For people.
std::string DescribeDecision(const std::string& job, const Quorum& quorum);

}  // namespace headrace::service
