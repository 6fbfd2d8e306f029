#include "service/cluster/lost_epochs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"
#include "service/session/fair_drop.h"

namespace headrace::service {

void LostEpochs::Note(std::string_view job, std::uint32_t uid, Loss loss) {
  Forget(job, uid);
  if (losses_.size() == kMax) losses_.erase(OldestOfGreediest(losses_, &Named::uid));
  losses_.push_back({.job = std::string(job), .uid = uid, .loss = std::move(loss)});
  HR_CHECK(losses_.size() <= kMax, losses_.size());
}

void LostEpochs::Forget(std::string_view job, std::uint32_t uid) {
  std::erase_if(losses_, [&](const Named& each) { return each.job == job && each.uid == uid; });
}

Status LostEpochs::Check(std::string_view job, std::uint32_t uid, std::uint32_t after_epoch,
                         bool decided) const {
  if (after_epoch == 0) return {};
  const auto found = std::ranges::find_if(
      losses_, [&](const Named& each) { return each.job == job && each.uid == uid; });
  if (found == losses_.end() || after_epoch > found->loss.epoch) return {};
  if (decided) {
    return Error(Code::kPeerLost,
                 fmt::format("{} after it was decided who is left of job {}: ask again",
                             found->loss.cause, job));
  }
  return Error(Code::kMismatch,
               fmt::format("job {} cannot continue: {}; a process started in its place is refused "
                           "beside ranks that continue: end all ranks of the job, and start them "
                           "again from a checkpoint",
                           job, found->loss.cause));
}

}  // namespace headrace::service
