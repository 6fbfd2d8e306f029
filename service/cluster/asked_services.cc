#include "service/cluster/asked_services.h"

#include "ipc/base/check.h"

namespace headrace::service {

void AskedServices::Add(std::uint32_t uid, const QuorumPlaces& places) {
  for (const QuorumPlace& place : places.all()) {
    if (!place.leader.empty()) ++by_user_[uid][place.leader];
  }
}

bool AskedServices::Remove(std::uint32_t uid, const QuorumPlaces& places) {
  const auto user = by_user_.find(uid);
  if (user == by_user_.end()) return false;
  bool any = false;
  for (const QuorumPlace& place : places.all()) {
    if (place.leader.empty()) continue;
    const auto found = user->second.find(place.leader);
    HR_CHECK(found != user->second.end(), uid, place.leader);
    if (--found->second > 0) continue;
    user->second.erase(found);
    any = true;
  }
  if (user->second.empty()) by_user_.erase(user);
  return any;
}

const AskedServices::Counts& AskedServices::Of(std::uint32_t uid) const {
  static const Counts kNone;
  const auto user = by_user_.find(uid);
  return user == by_user_.end() ? kNone : user->second;
}

bool AskedServices::MayAsk(std::uint32_t uid, const std::string& leader) const {
  const Counts& asked = Of(uid);
  return leader.empty() || asked.size() < kAskedServicesPerUserMax || asked.contains(leader);
}

}  // namespace headrace::service
