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
    const auto& parts = entry.second.parts;
    return std::any_of(parts.begin(), parts.end(), [node, number](const LedJob::Part& part) {
      return part.node == node && part.number == number;
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
  const bool over = std::all_of(job.parts.begin(), job.parts.end(), [](const LedJob::Part& part) {
    return part.server || part.forgot;
  });
  if (!over) return;
  for (const LedJob::Part& part : job.parts) Send(part, CloseJob{.job = part.number});
  jobs_.erase(NumberOf(job));
}

void LedJobs::Fail(LedJob& job, Code code, const std::string& cause) {
  // A rank may well die of what a drain refuses it.
  const std::string said =
      job.drain && code != CodeOfEnd(*job.drain)
          ? fmt::format("{}; {} had asked to drain the job", cause, DescribeAsker(*job.drain))
          : cause;
  for (const LedJob::Part& part : job.parts) {
    Send(part, AnnounceJobFailed{.job = part.number, .code = code, .cause = said});
  }
  jobs_.erase(NumberOf(job));
}

std::string LedJobs::DescribeRank(const LedJob::Part& part, std::uint32_t rank) const {
  const auto found = part.ranks.find(rank);
  if (found == part.ranks.end()) return fmt::format("rank {} on node {}", rank, NameOf(part));
  return fmt::format("rank {} (pid {}) on node {}", rank, found->second, NameOf(part));
}

void LedJobs::SendTo(NodeId node, PeerMessage message) {
  HR_CHECK(nodes_.contains(node), node, message.index());
  messages_.push_back({.node = node, .message = std::move(message)});
}

std::string LedJobs::DescribeForming(const LedJob& job) const {
  if (job.phase == LedJob::Phase::kForming) {
    std::vector<std::uint32_t> missing;
    for (std::uint32_t rank = 0; rank < job.world_size; ++rank) {
      const bool attached =
          std::any_of(job.parts.begin(), job.parts.end(),
                      [rank](const LedJob::Part& part) { return part.ranks.contains(rank); });
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
  for (const LedJob::Part& part : job.parts) {
    if (!part.answered) slow.push_back(NameOf(part));
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
           other.phase == LedJob::Phase::kForming && !other.parts.empty();
  });
  if (found == jobs_.end()) return {};
  return fmt::format(
      "; ranks on node {} wait as a job of the same name of uid {}, this one is of uid {}: if they "
      "belong together, start them with the same uid on all nodes",
      NameOf(found->second.parts.front()), found->second.uid, job.uid);
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
  for (LedJob::Part& part : job.parts) {
    if (part.server || part.announced == text) continue;
    part.announced = text;
    Send(part, AnnounceJobForming{.job = part.number, .text = text, .refused = refused});
  }
}

}  // namespace headrace::service
