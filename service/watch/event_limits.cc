#include "service/watch/event_limits.h"

#include <fmt/format.h>

#include <algorithm>

#include "ipc/base/check.h"

namespace headrace::service {
namespace {

// The kernel gives no user this number.
constexpr std::uint32_t kOtherUids = UINT32_MAX;

}  // namespace

bool EventLimits::Allow(std::uint32_t uid, bool is_failure, TimeNs now) {
  Key key{uid, is_failure};
  if (windows_.size() >= kEventUidsMax && !windows_.contains(key)) key.first = kOtherUids;
  Window& window = windows_[key];
  HR_CHECK(windows_.size() <= kEventUidsMax + 2, windows_.size());  // those of the other uids, too
  if (window.end_ns == 0) window.end_ns = now + kEventsWindow;
  if (window.allowance.TryAcquire(now)) return true;
  ++window.left_out;
  return false;
}

std::vector<std::string> EventLimits::EndWindows(TimeNs now) {
  std::vector<std::string> sentences;
  std::erase_if(windows_, [&sentences, now](const auto& each) {
    const auto& [key, window] = each;
    if (now < window.end_ns) return false;
    if (window.left_out != 0) {
      sentences.push_back(fmt::format(
          "{}: {} more {} within {} s were left out",
          key.first == kOtherUids ? "other uids" : fmt::format("uid {}", key.first),
          window.left_out, key.second ? "failures" : "events", kEventsWindow / kSecond));
    }
    return true;
  });
  return sentences;
}

TimeNs EventLimits::next_deadline() const {
  TimeNs deadline = kNever;
  for (const auto& [key, window] : windows_) {
    if (window.left_out != 0) deadline = std::min(deadline, window.end_ns);
  }
  return deadline;
}

}  // namespace headrace::service
