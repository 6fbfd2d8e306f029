#include "service/accounts/arrivals.h"

#include "ipc/base/check.h"

namespace headrace::service {

bool Arrivals::Booking::Add(std::uint64_t bytes, std::uint64_t descriptors) {
  const auto found = arrivals_->uids_.find(uid_);
  const Use use = found == arrivals_->uids_.end() ? Use{} : found->second;
  const ArrivalLimits& limits = arrivals_->limits_;
  HR_CHECK(use.bytes <= limits.bytes && use.descriptors <= limits.descriptors, uid_, use.bytes,
           use.descriptors);
  if (bytes > limits.bytes - use.bytes || descriptors > limits.descriptors - use.descriptors) {
    return false;
  }
  if (bytes == 0 && descriptors == 0) return true;
  arrivals_->uids_[uid_] = {.bytes = use.bytes + bytes,
                            .descriptors = use.descriptors + descriptors};
  bytes_ += bytes;
  descriptors_ += descriptors;
  return true;
}

std::uint64_t Arrivals::FreeDescriptors(std::uint32_t uid) const {
  const auto found = uids_.find(uid);
  return found == uids_.end() ? limits_.descriptors
                              : limits_.descriptors - found->second.descriptors;
}

void Arrivals::Return(const Booking& booking) {
  const auto found = uids_.find(booking.uid_);
  if (found == uids_.end()) return;
  HR_CHECK(
      found->second.bytes >= booking.bytes_ && found->second.descriptors >= booking.descriptors_,
      booking.uid_, booking.bytes_, booking.descriptors_);
  found->second.bytes -= booking.bytes_;
  found->second.descriptors -= booking.descriptors_;
  if (found->second.bytes == 0 && found->second.descriptors == 0) uids_.erase(found);
}

}  // namespace headrace::service
