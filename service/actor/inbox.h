// The only way into an actor: a bounded queue of messages that any thread may send to.
//
// InboxWriter<Message> is what senders hold; tests give them one that records. Inbox<Message> is
// the real one: it wakes its actor's thread if that sleeps, and keeps the order of each sender.
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "ipc/base/check.h"

namespace headrace::service {

// How an actor's thread is woken; implemented by Sleeper.
class Wakeable {
 public:
  virtual ~Wakeable() = default;
  virtual void Wake() = 0;
};

template <typename Message>
class InboxWriter {
 public:
  virtual ~InboxWriter() = default;
  // False when the actor has fallen kInboxMax messages behind; the message is then left as it was.
  [[nodiscard]] virtual bool Send(Message&& message) = 0;
};

inline constexpr std::size_t kInboxMax = 65536;

template <typename Message>
class Inbox final : public InboxWriter<Message> {
 public:
  // `owner` is woken by each message that finds the inbox empty; it outlives the inbox.
  explicit Inbox(Wakeable& owner) : owner_(owner) {}

  [[nodiscard]] bool Send(Message&& message) override {
    if (!Put(std::move(message))) return false;
    owner_.Wake();
    return true;
  }
  // The same, and the sender wakes the owner (late_wake.h).
  [[nodiscard]] bool Put(Message&& message) {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= kInboxMax) return false;
    waiting_.push_back(std::move(message));
    // seq_cst: pairs with the owner, which announces its sleep and then asks Empty().
    count_.store(waiting_.size());
    return true;
  }

  // Owner only: replaces `taken` by all messages so far, in order. Takes no lock when there are
  // none, and allocates nothing once both vectors have grown to what the traffic needs.
  void PopAll(std::vector<Message>& taken) {
    taken.clear();
    if (Empty()) return;
    const std::lock_guard lock(mutex_);
    taken.swap(waiting_);
    HR_CHECK(waiting_.empty() && taken.size() <= kInboxMax, taken.size());
    count_.store(0);
  }

  bool Empty() const { return count_.load() == 0; }

 private:
  Wakeable& owner_;
  std::mutex mutex_;
  std::vector<Message> waiting_;
  std::atomic<std::size_t> count_ = 0;
};

}  // namespace headrace::service
