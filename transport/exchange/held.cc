#include "transport/exchange/held.h"

#include <algorithm>

namespace headrace::transport {

HeldMessages::Outcome HeldMessages::Hold(const Message& message) {
  const MessageName name = NameOf(message.header);
  const auto same = [&name](const Message& held) { return NameOf(held.header) == name; };
  if (std::ranges::any_of(messages_, same)) return Outcome::kTwice;
  if (messages_.size() == messages_max_) return Outcome::kFull;
  messages_.push_back(message);
  return Outcome::kHeld;
}

std::optional<Message> HeldMessages::Pop(const MessageName& name) {
  for (std::size_t i = 0; i < messages_.size(); ++i) {
    if (NameOf(messages_[i].header) == name) return PopAt(i);
  }
  return std::nullopt;
}

std::optional<Message> HeldMessages::PopAny() {
  if (messages_.empty()) return std::nullopt;
  return PopAt(messages_.size() - 1);
}

std::optional<std::uint64_t> HeldMessages::LowestPosition(std::uint64_t floor) const {
  std::optional<std::uint64_t> lowest;
  for (const Message& message : messages_) {
    const std::uint64_t position = message.header.position;
    if (position >= floor && (!lowest || position < *lowest)) lowest = position;
  }
  return lowest;
}

Message HeldMessages::PopAt(std::size_t index) {
  const Message message = messages_[index];
  messages_[index] = messages_.back();
  messages_.pop_back();
  return message;
}

}  // namespace headrace::transport
