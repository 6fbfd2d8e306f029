#include "service/lane/lane_probe.h"

#include <algorithm>

#include "ipc/base/check.h"

namespace headrace::service {
namespace {

constexpr std::int32_t Input(std::size_t member, std::size_t element) {
  return static_cast<std::int32_t>((member + 1) * 1000 + element);
}

}  // namespace

LaneProbe::LaneProbe(std::uint8_t lane, Way way, transport::Transport& transport)
    : lane_(lane), way_(way), transport_(transport), asked_(kAskedMax) {}

bool LaneProbe::Ask(RequestToken token) {
  if (asked_.full()) return false;
  asked_.push_back(token);
  return true;
}

void LaneProbe::Post(TimeNs now) {
  if (asked_.empty() || covered_count_ > 0) return;
  if (way_ == Way::kRoundTrip) {
    covered_count_ = asked_.size();
    return;
  }
  transport::Transfer transfer{.token = kOwnToken,
                               .kind = Collective::kAllReduce,
                               .dtype = DType::kInt32,
                               .count = kCount,
                               .members_count = kMembers};
  for (std::size_t member = 0; member < kMembers; ++member) {
    for (std::size_t i = 0; i < kCount; ++i) memory_[member][i] = Input(member, i);
    transfer.members[member] = reinterpret_cast<std::byte*>(memory_[member].data());
  }
  if (transport_.Post(transfer, now) == transport::PostResult::kAccepted) {
    covered_count_ = asked_.size();
  }
}

void LaneProbe::HandleCompletions(std::vector<transport::Completion>& completions) {
  if (covered_count_ == 0) return;
  if (way_ == Way::kRoundTrip) {
    answered_count_ = covered_count_;
    return;
  }
  const auto own = std::ranges::find(completions, kOwnToken, &transport::Completion::token);
  if (own == completions.end()) return;
  status_ = Judge(*own);
  answered_count_ = covered_count_;
  completions.erase(own);
}

Status LaneProbe::Judge(const transport::Completion& completion) const {
  if (completion.code != Code::kOk) {
    return Error(completion.code, "a sum of a few bytes failed: " + completion.cause);
  }
  for (std::size_t i = 0; i < kCount; ++i) {
    const std::int32_t expected = Input(0, i) + Input(1, i);
    for (const auto& member : memory_) {
      if (member[i] == expected) continue;
      return Error(Code::kInternal, std::to_string(Input(0, i)) + " and " +
                                        std::to_string(Input(1, i)) + " were summed to " +
                                        std::to_string(member[i]) +
                                        ": the results of this lane cannot be trusted; stop the "
                                        "jobs of this node and look for broken memory");
    }
  }
  return {};
}

std::optional<LaneAnswered> LaneProbe::Next() {
  if (answered_count_ == 0) return std::nullopt;
  HR_CHECK(answered_count_ <= covered_count_ && covered_count_ <= asked_.size(), answered_count_,
           covered_count_, asked_.size());
  LaneAnswered answered{.lane = lane_, .token = asked_.front(), .status = status_};
  asked_.pop_front();
  --covered_count_;
  --answered_count_;
  return answered;
}

}  // namespace headrace::service
