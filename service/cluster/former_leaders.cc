#include "service/cluster/former_leaders.h"

#include <algorithm>

namespace headrace::service {

void FormerLeaders::SendPlaces(const Told& told) {
  const JobPlaces* known = jobs_.directory().Find(told.first);
  if (known == nullptr) return;
  JobPlaces places = *known;
  places.HideOwn(jobs_.options().node_name);
  jobs_.SendTo(told.second, ReportJobPlaces{.name = told.first.first,
                                            .uid = told.first.second,
                                            .places = std::move(places)});
}

void FormerLeaders::OnLeaderUp(const std::string& leader) {
  for (const auto& [told, meant] : told_) {
    if (told.second == leader) SendPlaces(told);
  }
}

void FormerLeaders::Refresh() {
  for (auto& [told, meant] : told_) meant = false;
  for (const auto& [number, job] : jobs_.all()) {
    const bool leads = job.phase == FollowedJob::Phase::kRunning && !FollowedJobs::IsLedHere(job) &&
                       job.agreement.leader == jobs_.options().node_name;
    if (!leads || job.forgotten) continue;
    const JobDirectory::JobKey key{job.name, job.uid};
    const JobPlaces* known = jobs_.directory().Find(key);
    if (known == nullptr) continue;
    for (const JobPlace& place : known->former) {
      if (known->Has(place.node) || place.node == jobs_.options().node_name) continue;
      const Result<std::string> leader = jobs_.options().leader_at(place);
      if (!leader) continue;
      const auto [told, is_new] = told_.insert_or_assign({key, *leader}, true);
      if (!is_new) continue;
      jobs_.KeepLeader(*leader);
      if (jobs_.IsUp(*leader)) SendPlaces(told->first);
    }
  }
  std::erase_if(told_, [this](const auto& entry) {
    if (!entry.second) jobs_.ReleaseLeader(entry.first.second);
    return !entry.second;
  });
}

}  // namespace headrace::service
