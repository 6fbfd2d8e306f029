#include "service/peers/unsent_messages.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "ipc/base/check.h"
#include "service/peers/wire_bytes.h"

namespace headrace::service {
namespace {

bool MayBeOmitted(const PeerMessage& message) {
  return std::holds_alternative<ReportTimesSeen>(message) ||
         std::holds_alternative<ReportBlockHashed>(message);
}

}  // namespace

bool UnsentMessages::Push(PeerMessage message) {
  if (MayBeOmitted(message) &&
      (messages_.size() >= kUnsentMax / 2 || bytes_ >= kUnsentBytesMax / 2)) {
    return true;
  }
  const std::size_t bytes = WireBytes(message);
  if (Waiting* older = FindOlderReport(message); older != nullptr) {
    bytes_ += bytes - older->bytes;
    *older = {std::move(message), bytes};
    return bytes_ <= kUnsentBytesMax;
  }
  bytes_ += bytes;
  messages_.push_back({std::move(message), bytes});
  return messages_.size() <= kUnsentMax && bytes_ <= kUnsentBytesMax;
}

UnsentMessages::Waiting* UnsentMessages::FindOlderReport(const PeerMessage& message) {
  const auto* report = std::get_if<ReportQuorum>(&message);
  if (report == nullptr) return nullptr;
  const auto found = std::ranges::find_if(messages_, [report](const Waiting& each) {
    const auto* other = std::get_if<ReportQuorum>(&each.message);
    return other != nullptr && other->job == report->job;
  });
  return found == messages_.end() ? nullptr : &*found;
}

PeerMessage UnsentMessages::Pop() {
  HR_CHECK(!messages_.empty());
  Waiting first = std::move(messages_.front());
  messages_.pop_front();
  HR_CHECK(first.bytes <= bytes_, first.bytes, bytes_);
  bytes_ -= first.bytes;
  HR_CHECK(!messages_.empty() || bytes_ == 0, bytes_);
  return std::move(first.message);
}

void UnsentMessages::Clear() {
  messages_.clear();
  bytes_ = 0;
}

std::size_t UnsentMessages::CountOfCall(std::size_t messages_max, std::size_t bytes_max) const {
  std::size_t count = 0;
  std::size_t bytes = 0;
  for (; count < std::min(messages_.size(), messages_max); ++count) {
    bytes += messages_[count].bytes;
    if (count > 0 && bytes > bytes_max) break;
  }
  return count;
}

}  // namespace headrace::service
