#include "service/cluster/job_directory.h"

#include <algorithm>
#include <tuple>

#include "ipc/base/check.h"
#include "service/session/fair_drop.h"

namespace headrace::service {

bool JobPlaces::Has(const std::string& node) const {
  return std::ranges::find(places, node, &JobPlace::node) != places.end();
}

void JobPlaces::HideOwn(const std::string& node) {
  for (auto* const list : {&places, &former}) {
    for (JobPlace& each : *list) {
      if (each.node == node) each.address.clear();
    }
  }
}

void JobPlaces::ShowOwn(const JobPlace& own) {
  for (auto* const list : {&places, &former}) {
    for (JobPlace& each : *list) {
      if (each.node == own.node || (each.node.empty() && each.address.empty())) each = own;
    }
  }
}

void JobPlaces::Lead(const JobPlace& leader) {
  std::vector<JobPlace> others = std::move(places);
  places = {leader};
  if (!others.empty() && others.front() != leader && others.front().node != leader.node) {
    std::erase_if(former, [&others](const JobPlace& each) {
      return each == others.front() || each.node == others.front().node;
    });
    former.push_back(others.front());
    // Whoever comes later was told of the first of them.
    if (former.size() > kFormerLeadersMax) former.erase(former.begin() + 1);
  }
  for (JobPlace& each : others) {
    if (each != leader && each.node != leader.node) places.push_back(std::move(each));
  }
}

bool IsNewer(const JobPlaces& one, const JobPlaces& other) {
  const auto count = [](const JobPlaces& each) {
    return std::make_tuple(each.membership.generation, each.epoch);
  };
  if (count(one) != count(other)) return count(one) > count(other);
  return IsNewer(one.membership, other.membership);
}

const JobPlaces* JobDirectory::Find(const JobKey& job) const {
  const auto found = std::ranges::find(known_, job, &Known::job);
  return found == known_.end() ? nullptr : &found->places;
}

void JobDirectory::OnReported(const JobKey& job, JobPlaces places) {
  const JobPlaces* known = Find(job);
  if (known == nullptr || IsNewer(places, *known)) Note(job, std::move(places));
}

void JobDirectory::Note(const JobKey& job, JobPlaces places) {
  const JobPlaces* known = Find(job);
  if (known != nullptr && (*known == places || IsNewer(*known, places))) return;
  Forget(job);
  if (known_.size() == kPlacedJobsMax) ForgetOne();
  HR_CHECK(known_.size() < kPlacedJobsMax, known_.size());
  known_.push_back({.job = job, .places = std::move(places), .change = ++changes_});
}

std::vector<JobDirectory::JobKey> JobDirectory::ChangedSince(std::uint64_t changes) const {
  std::vector<JobKey> jobs;
  // Each is recorded behind those before.
  for (auto known = known_.rbegin(); known != known_.rend() && known->change > changes; ++known) {
    jobs.push_back(known->job);
  }
  return jobs;
}

void JobDirectory::NoteRunning(const JobKey& job, const Agreement& agreement,
                               const JobPlace& leader) {
  const JobPlaces* known = Find(job);
  JobPlaces now = known == nullptr ? JobPlaces{} : *known;
  now.Lead(leader);
  now.epoch = agreement.epoch;
  now.places = {leader};
  // A job that servers sum for stays with the leader that they are connected to.
  for (const AgreedNode& node : agreement.nodes) {
    // A leader without ranks stands beside as many nodes as there may be places.
    if (now.places.size() == transport::kNodesMax) break;
    if (agreement.servers_count == 0 && node.name != leader.node) {
      now.places.push_back({.node = node.name, .address = node.control});
    }
  }
  Note(job, std::move(now));
}

void JobDirectory::Forget(const JobKey& job) {
  std::erase_if(known_, [&job](const Known& each) { return each.job == job; });
}

void JobDirectory::ForgetOne() {
  known_.erase(OldestOfGreediest(known_, [](const Known& each) { return each.job.second; }));
}

}  // namespace headrace::service
