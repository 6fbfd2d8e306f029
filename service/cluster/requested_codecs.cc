#include "service/cluster/requested_codecs.h"

#include <algorithm>

#include "ipc/base/check.h"
#include "service/session/fair_drop.h"

namespace headrace::service {

void RequestedCodecs::Keep(std::string_view job, std::uint32_t uid, const CodecChoice& choice) {
  Forget(job, uid);
  if (requests_.size() == kMax) requests_.erase(OldestOfGreediest(requests_, &Request::uid));
  requests_.push_back({std::string(job), uid, choice});
  HR_CHECK(requests_.size() <= kMax, requests_.size());
}

std::optional<CodecChoice> RequestedCodecs::Find(std::string_view job, std::uint32_t uid) const {
  const auto found = std::ranges::find_if(
      requests_, [&](const Request& each) { return each.job == job && each.uid == uid; });
  return found == requests_.end() ? std::nullopt : std::optional(found->choice);
}

void RequestedCodecs::Forget(std::string_view job, std::uint32_t uid) {
  std::erase_if(requests_, [&](const Request& each) { return each.job == job && each.uid == uid; });
}

}  // namespace headrace::service
