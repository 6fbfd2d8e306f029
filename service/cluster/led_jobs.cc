#include "service/cluster/led_jobs.h"

#include <fmt/format.h>

#include <algorithm>

#include "ipc/base/check.h"
#include "service/cluster/names.h"

namespace headrace::service {

void LedJobs::ForgetNode(NodeId node) {
  for (const auto& [number, job] : jobs_) HR_CHECK(!job.HasNode(node), job.name, node);
  nodes_.erase(node);
  std::erase_if(messages_, [node](const ToNode& each) { return each.node == node; });
}

LedJobs::Jobs::iterator LedJobs::Find(NodeId node, std::uint32_t number) {
  return std::find_if(jobs_.begin(), jobs_.end(), [node, number](const auto& entry) {
    const auto& participants = entry.second.participants;
    return std::any_of(participants.begin(), participants.end(),
                       [node, number](const LedJob::Participant& participant) {
                         return participant.node == node && participant.number == number;
                       });
  });
}

LedJobs::JobNumber LedJobs::NumberOf(const LedJob& job) const {
  const auto found = std::find_if(jobs_.begin(), jobs_.end(),
                                  [&job](const auto& entry) { return &entry.second == &job; });
  HR_CHECK(found != jobs_.end(), job.name);
  return found->first;
}

void LedJobs::CloseIfForgotten(LedJob& job) {
  const bool over = std::all_of(job.participants.begin(), job.participants.end(),
                                [](const LedJob::Participant& participant) {
                                  return participant.server || participant.forgot;
                                });
  if (!over) return;
  for (const LedJob::Participant& participant : job.participants)
    Send(participant, CloseJob{.job = participant.number});
  jobs_.erase(NumberOf(job));
}

void LedJobs::FailJob(LedJob& job, Code code, const std::string& cause) {
  // A rank may well die of what a drain refuses it.
  const std::string said =
      job.drain && code != CodeOfEnd(*job.drain)
          ? fmt::format("{}; {} had asked to drain the job", cause, DescribeAsker(*job.drain))
          : cause;
  for (const LedJob::Participant& participant : job.participants) {
    Send(participant, AnnounceJobFailed{.job = participant.number, .code = code, .cause = said});
  }
  jobs_.erase(NumberOf(job));
}

std::string LedJobs::DescribeRank(const LedJob::Participant& participant,
                                  std::uint32_t rank) const {
  const auto found = participant.ranks.find(rank);
  if (found == participant.ranks.end())
    return fmt::format("rank {} on node {}", rank, NameOf(participant));
  return fmt::format("rank {} (pid {}) on node {}", rank, found->second, NameOf(participant));
}

void LedJobs::SendTo(NodeId node, PeerMessage message) {
  HR_CHECK(nodes_.contains(node), node, message.index());
  messages_.push_back({.node = node, .message = std::move(message)});
}

std::string LedJobs::DescribeForming(const LedJob& job) const {
  if (job.phase == LedJob::Phase::kForming) {
    std::vector<std::uint32_t> missing;
    for (std::uint32_t rank = 0; rank < job.world_size; ++rank) {
      const bool attached = std::any_of(job.participants.begin(), job.participants.end(),
                                        [rank](const LedJob::Participant& participant) {
                                          return participant.ranks.contains(rank);
                                        });
      if (!attached) missing.push_back(rank);
    }
    if (missing.empty()) {
      return fmt::format(
          "no server has registered with the service on node {}: start one with "
          "--role server",
          options_.node_name);
    }
    const std::string& refused = RefusalOf(job);
    return fmt::format("{} of {} ranks have attached: {}{}{}{}", job.world_size - missing.size(),
                       job.world_size, MissingRanks(missing), refused.empty() ? "" : "; ", refused,
                       DescribeNamesake(job));
  }
  std::vector<std::string> slow;
  for (const LedJob::Participant& participant : job.participants) {
    if (!participant.answered) slow.push_back(NameOf(participant));
  }
  if (slow.empty()) return {};
  const char* doing = job.phase == LedJob::Phase::kOpening     ? "opening its links"
                      : job.phase == LedJob::Phase::kMeasuring ? "measuring its links"
                                                               : "taking up the job";
  return fmt::format("all {} ranks have attached: waiting for {} {}", job.world_size,
                     NodeList(slow), doing);
}

// Where nodes do not have the same users, the ranks of one job come as several jobs.
std::string LedJobs::DescribeNamesake(const LedJob& job) const {
  const auto found = std::ranges::find_if(jobs_, [&job](const auto& entry) {
    const LedJob& other = entry.second;
    return other.name == job.name && other.uid != job.uid && other.world_size == job.world_size &&
           other.phase == LedJob::Phase::kForming && !other.participants.empty();
  });
  if (found == jobs_.end()) return {};
  return fmt::format(
      "; ranks on node {} wait as a job of the same name of uid {}, this one is of uid {}: if they "
      "belong together, start them with the same uid on all nodes",
      NameOf(found->second.participants.front()), found->second.uid, job.uid);
}

void LedJobs::AnnounceForming(LedJob& job) {
  AnnounceFormingOf(job);
  for (auto& [number, other] : jobs_) {
    if (other.name == job.name && other.uid != job.uid) AnnounceFormingOf(other);
  }
}

void LedJobs::AnnounceFormingOf(LedJob& job) {
  const std::string text = DescribeForming(job);
  const bool refused = job.phase == LedJob::Phase::kForming && !RefusalOf(job).empty();
  for (LedJob::Participant& participant : job.participants) {
    if (participant.server || participant.announced == text) continue;
    participant.announced = text;
    Send(participant,
         AnnounceJobForming{.job = participant.number, .text = text, .refused = refused});
  }
}

}  // namespace headrace::service
