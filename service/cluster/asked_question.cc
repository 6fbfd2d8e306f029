#include "service/cluster/asked_question.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "ipc/base/check.h"
#include "transport/transport.h"

namespace headrace::service {
Error LeftOut(const std::string& job, std::uint32_t member) {
  return Error(
      Code::kMismatch,
      fmt::format("job {} continues without member {}, which did not come in time: end this "
                  "process",
                  job, member));
}

std::uint32_t StallOf(const SlowBound& bound) {
  if (bound.least_world == 0) return 0;
  return std::clamp(std::min(bound.seconds, kSlowBoundMaxS) * 1000, kQuorumStallLeastMs,
                    kQuorumStallMaxMs);
}

std::vector<SessionBroken> EvictionsBy(const Quorum& quorum, const KnownMembers::Job* job) {
  std::vector<SessionBroken> evictions;
  for (const LostMember& each : quorum.lost) {
    if (job == nullptr) break;
    const auto member = job->members.find(each.member);
    if (member == job->members.end() || member->second.session == SessionId{}) continue;
    evictions.push_back({.session = member->second.session,
                         .error = Error(Code::kPeerLost,
                                        "was evicted: the job goes on without "
                                        "it, since it " +
                                            each.cause),
                         .evicted = true});
  }
  return evictions;
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

ReportQuorum DescribeMembers(std::uint32_t number, const AskedQuestion& question,
                             const KnownMembers::Job* job) {
  ReportQuorum report{.job = number,
                      .name = question.key.first,
                      .uid = question.key.second,
                      .membership = {},
                      .rules = {},
                      .members = {}};
  std::map<std::uint32_t, MemberReport> members;
  if (job != nullptr) {
    report.epoch = job->epoch;
    report.rules.stall_ms = job->stall_ms;
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
  // A job of which nothing is known here has one member at least.
  if (report.membership.members.empty()) report.membership.members.push_back(0);
  for (const auto& [number_of, applicant] : question.applicants) {
    if (report.members.size() >= transport::kMembersMax) break;
    const bool spare = applicant.ask.role == MemberRole::kSpare;
    report.members.push_back(
        {.member = number_of, .state = spare ? MemberState::kSpare : MemberState::kJoins});
    report.rules.min_world = std::max(report.rules.min_world, applicant.ask.rules.min_world);
  }
  return report;
}

std::vector<QuorumPlace> PlacesOf(const JobPlaces* known, const std::set<std::string>& rendezvous,
                                  const FollowerOptions& options) {
  std::vector<QuorumPlace> places;
  const auto add = [&places](QuorumPlace place) {
    const bool is_there =
        std::ranges::find(places, place.leader, &QuorumPlace::leader) != places.end();
    if (!is_there) places.push_back(std::move(place));
  };
  const bool led_here = rendezvous.contains("");
  if (known != nullptr && !led_here) {
    for (const JobPlace& where : known->places) {
      // One that this service may not reach, or cannot, counts as gone.
      const Result<std::string> leader = options.leader_at(where);
      if (leader) add({.where = where, .leader = *leader});
    }
  }
  const bool meets = places.empty();
  for (const std::string& leader : rendezvous) {
    add({.where = {.node = {}, .address = options.address_of(leader)},
         .leader = leader,
         .meets = meets});
  }
  return places;
}

// Those beyond are the last, in the order that all nodes share. So this node meets the others where
// it would meet them if these could not be reached.
std::vector<QuorumPlace> PlacesWithinLimit(AskedQuestion& question, const AskedServices& others,
                                           const JobPlaces* known, const FollowerOptions& options) {
  std::vector<QuorumPlace> places = PlacesOf(known, question.rendezvous, options);
  HR_CHECK(!places.empty(), question.key.first);
  const std::uint32_t uid = question.key.second;
  const AskedServices::Counts& asked = others.Of(uid);
  std::size_t count = 0;
  // A question that is opened goes to one service at least.
  if (others.MayAsk(uid, places.front().leader) || question.places.all().empty()) {
    std::size_t added_count = 0;  // that no other question goes to
    for (const QuorumPlace& place : places) {
      const bool is_asked = place.leader.empty() || asked.contains(place.leader);
      const bool is_full = asked.size() + added_count >= kAskedServicesPerUserMax;
      if (count > 0 && !is_asked && is_full) break;
      if (!is_asked) ++added_count;
      ++count;
    }
  }
  question.left_out = places.size() - count;
  question.first_left_out = count < places.size() ? places[count].leader : std::string();
  if (count == 0) return question.places.all();
  places.resize(count);
  return places;
}

Status CheckRoom(const std::map<std::uint32_t, AskedQuestion>& questions,
                 const AskedServices& asked, const JobDirectory::JobKey& key,
                 const std::string& rendezvous, const JobPlaces* known,
                 const FollowerOptions& options) {
  // Fair share: a user may have as many questions open as it leaves free for others.
  const auto own = static_cast<std::size_t>(std::ranges::count_if(
      questions, [&key](const auto& entry) { return entry.second.key.second == key.second; }));
  if (own + questions.size() >= kQuorumsAskedMax) {
    return Error(Code::kBusy,
                 fmt::format("{} jobs of this node, {} of them of uid {}, ask who is left of them, "
                             "and what is free is for other users: ask again when one of them is "
                             "answered",
                             questions.size(), own, key.second));
  }
  const std::string first = PlacesOf(known, {rendezvous}, options).front().leader;
  if (asked.MayAsk(key.second, first)) return {};
  return Error(Code::kBusy,
               fmt::format("jobs of uid {} ask {} services who is left of them, more are not "
                           "supported: ask again when one of them is answered",
                           key.second, kAskedServicesPerUserMax));
}

std::map<std::uint32_t, QuorumAsker>::iterator FindClient(
    std::map<std::uint32_t, QuorumAsker>& askers, std::uint64_t client) {
  return std::ranges::find_if(
      askers, [client](const auto& entry) { return entry.second.client == client; });
}

std::optional<std::string> AskedBesides(const std::map<std::uint32_t, AskedQuestion>& questions,
                                        const AskQuorum& message) {
  const JobDirectory::JobKey key{message.job, message.uid};
  for (const auto& [number, question] : questions) {
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

std::string DescribeWaits(const AskedQuestion& question) {
  if (question.left_out == 0) return question.waits;
  return fmt::format(
      "{}{}{} services of the job are not asked, because jobs of uid {} ask {} services already",
      question.waits, question.waits.empty() ? "" : "; ", question.left_out, question.key.second,
      kAskedServicesPerUserMax);
}

}  // namespace headrace::service
