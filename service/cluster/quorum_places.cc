#include "service/cluster/quorum_places.h"

#include <algorithm>
#include <utility>

namespace headrace::service {

QuorumPlace* QuorumPlaces::Find(const std::string& leader) {
  const auto found = std::ranges::find(places_, leader, &QuorumPlace::leader);
  return found == places_.end() ? nullptr : &*found;
}

bool QuorumPlaces::Has(const std::string& leader) const {
  return std::ranges::find(places_, leader, &QuorumPlace::leader) != places_.end();
}

void QuorumPlaces::Replace(std::vector<QuorumPlace> places) {
  for (QuorumPlace& place : places) {
    if (const QuorumPlace* before = Find(place.leader); before != nullptr) {
      place.state = before->state;
      place.informed = before->informed;
    }
  }
  places_ = std::move(places);
}

std::optional<std::size_t> QuorumPlaces::Meeting() const {
  std::optional<std::size_t> meeting;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const QuorumPlace& place = places_[i];
    if (!place.meets || place.state == QuorumPlace::State::kGone) continue;
    if (!meeting) {
      if (!place.IsUp()) return std::nullopt;
      meeting = i;
    } else if (place.state != QuorumPlace::State::kHeard) {
      return std::nullopt;
    }
  }
  return meeting;
}

std::size_t QuorumPlaces::meeting_count() const {
  return static_cast<std::size_t>(std::ranges::count(places_, true, &QuorumPlace::meets));
}

}  // namespace headrace::service
