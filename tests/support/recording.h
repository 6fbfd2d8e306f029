// What stands on the far side of an actor in a test: inboxes, wake-ups and doorbells that only
// record.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "service/actor/inbox.h"
#include "service/actor/sleeper.h"

namespace headrace::support {

template <typename Message>
class RecordingInbox final : public service::InboxWriter<Message> {
 public:
  [[nodiscard]] bool Send(Message&& message) override {
    if (full) return false;
    messages.push_back(std::move(message));
    if (on_message) on_message(messages.back());
    return true;
  }

  // The messages of one kind, in the order they came.
  template <typename Kind>
  std::vector<const Kind*> Of() const {
    std::vector<const Kind*> found;
    for (const Message& message : messages) {
      if (const Kind* kind = std::get_if<Kind>(&message)) found.push_back(kind);
    }
    return found;
  }

  // Takes the first of one kind out; nothing when there is none.
  template <typename Kind>
  std::optional<Kind> Take() {
    const auto found = std::ranges::find_if(
        messages, [](const Message& message) { return std::holds_alternative<Kind>(message); });
    if (found == messages.end()) return std::nullopt;
    std::optional<Kind> taken(std::get<Kind>(std::move(*found)));
    messages.erase(found);
    return taken;
  }

  bool full = false;                                 // answers as an inbox that is too far behind
  std::function<void(const Message&)> on_message{};  // that has come
  std::vector<Message> messages;
};

class CountingWakeable final : public service::Wakeable {
 public:
  void Wake() override { ++wakes; }
  int wakes = 0;
};

class RecordingDoorbells final : public service::Doorbells {
 public:
  Status Watch(int fd) override {
    if (refuse) return Error(Code::kInvalidArgument, "epoll_ctl add: Operation not permitted");
    watched.push_back(fd);
    return {};
  }
  void Unwatch(int fd) override { std::erase(watched, fd); }

  bool refuse = false;
  std::vector<int> watched;
};

}  // namespace headrace::support
