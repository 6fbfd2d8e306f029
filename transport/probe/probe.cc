#include "transport/probe/probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ipc/base/check.h"

namespace headrace::transport {
namespace {

constexpr std::uint64_t TransfersMax() {
  std::uint64_t count = 0;
  for (const ProbeStep& step : kProbeSteps) count += step.times + 1;  // and the agreement
  return count;
}
static_assert(TransfersMax() <= kProbePositions);

}  // namespace

double BytesSent(std::uint32_t members_count, std::uint32_t servers_count, double size) {
  if (servers_count > 0) return size;
  return members_count < 2 ? 0 : 2.0 * (members_count - 1) / members_count * size;
}

CostProbe::CostProbe(const ProbeGroup& group) : group_(group), position_(group.position_first) {
  const bool alone = group.members_count + group.servers_count < 2;
  if (alone) {
    result_ = CostLine{0, kSecondsPerByteMin};
    return;
  }
  HR_CHECK(group.self < group.members_count, group.self, group.members_count);
  memory_.resize(kProbeSteps.back().size);
  seconds_.reserve(kProbePositions);
  samples_.reserve(kProbeSteps.size());
}

Transfer CostProbe::NextTransfer() {
  HR_CHECK(step_ < kProbeSteps.size() && position_ < group_.position_first + kProbePositions, step_,
           position_);
  Transfer transfer;
  transfer.token = group_.token;
  transfer.kind = Collective::kAllReduce;
  transfer.dtype = agreeing_ ? DType::kFloat64 : DType::kFloat32;
  transfer.reduction = agreeing_ ? Reduction::kMax : Reduction::kSum;
  transfer.count = agreeing_ ? 1 : kProbeSteps[step_].size / SizeOf(transfer.dtype);
  transfer.group = group_.group;
  transfer.position = position_;
  transfer.members_count = group_.members_count;
  transfer.members[group_.self] =
      agreeing_ ? reinterpret_cast<std::byte*>(&agreed_seconds_) : memory_.data();
  return transfer;
}

bool CostProbe::Step(NetworkTransport& transport, TimeNs now) {
  if (result_ || posted_) return false;
  if (transport.Post(NextTransfer(), now) == PostResult::kBusy) return false;
  posted_ = true;
  ++position_;
  return true;
}

bool CostProbe::OnCompletion(const Completion& completion) {
  if (!posted_ || completion.token != group_.token) return false;
  posted_ = false;
  if (completion.code != Code::kOk) {
    result_ = Error(completion.code, completion.cause).Within("measure the cost of the links");
  } else if (agreeing_) {
    EndAgreement();
  } else {
    EndTransfer(completion);
  }
  return true;
}

void CostProbe::EndTransfer(const Completion& completion) {
  HR_CHECK(!result_ && !agreeing_, step_);
  if (time_ > 0) {
    // A clock that stands still is still no reason to divide by zero.
    const TimeNs taken = std::max<TimeNs>(completion.end_ns - completion.begin_ns, 1);
    seconds_.push_back(static_cast<double>(taken) / kSecond);
  }
  if (++time_ < kProbeSteps[step_].times) return;
  agreed_seconds_ = MedianSeconds();
  agreeing_ = true;
}

void CostProbe::EndAgreement() {
  HR_CHECK(agreeing_ && samples_.size() < kProbeSteps.size(), samples_.size());
  agreeing_ = false;
  const auto size = static_cast<double>(kProbeSteps[step_].size);
  if (!std::isfinite(agreed_seconds_) || agreed_seconds_ <= 0) {
    result_ = Error(Code::kMismatch,
                    fmt::format("measure the cost of the links: the nodes agreed on {} s for {} "
                                "bytes; they must run the same release",
                                agreed_seconds_, size));
    return;
  }
  samples_.push_back(
      {BytesSent(group_.members_count, group_.servers_count, size), agreed_seconds_});
  time_ = 0;
  seconds_.clear();
  const std::size_t next = step_ + 1;
  const bool last = next == kProbeSteps.size() ||
                    agreed_seconds_ * static_cast<double>(kProbeSteps[next].size) / size >
                        kProbeTransferSecondsMax;
  if (last) {
    result_ = LineOfLargest(samples_);
  } else {
    step_ = next;
  }
}

double CostProbe::MedianSeconds() {
  HR_CHECK(!seconds_.empty(), step_);
  const auto middle = seconds_.begin() + static_cast<std::ptrdiff_t>(seconds_.size() / 2);
  std::nth_element(seconds_.begin(), middle, seconds_.end());
  return *middle;
}

}  // namespace headrace::transport
