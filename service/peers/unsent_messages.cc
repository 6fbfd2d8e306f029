#include "service/peers/unsent_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
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
  HR_CHECK(sent_ >= acknowledged_ && sent_ - acknowledged_ <= messages_.size(), sent_,
           acknowledged_, messages_.size());
  const auto not_sent = messages_.begin() + static_cast<std::ptrdiff_t>(sent_ - acknowledged_);
  const auto found = std::find_if(not_sent, messages_.end(), [report](const Waiting& each) {
    const auto* other = std::get_if<ReportQuorum>(&each.message);
    return other != nullptr && other->job == report->job;
  });
  return found == messages_.end() ? nullptr : &*found;
}

void UnsentMessages::MarkSent(std::size_t count) {
  HR_CHECK(count <= messages_.size(), count, messages_.size());
  sent_ = std::max(sent_, acknowledged_ + count);
}

Status UnsentMessages::Acknowledge(std::uint64_t number) {
  if (number > sent_) {
    return Error(Code::kCorrupt,
                 fmt::format("message {} is acknowledged, of {} that were sent", number, sent_));
  }
  for (; acknowledged_ < number; ++acknowledged_) {
    HR_CHECK(!messages_.empty(), acknowledged_, number);
    HR_CHECK(messages_.front().bytes <= bytes_, messages_.front().bytes, bytes_);
    bytes_ -= messages_.front().bytes;
    messages_.pop_front();
  }
  HR_CHECK(!messages_.empty() || bytes_ == 0, bytes_);
  return {};
}

void UnsentMessages::Clear() {
  acknowledged_ += messages_.size();
  sent_ = acknowledged_;
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
