// The inbox of an actor whose thread sleeps in a kj event loop (rpc, peers, http).
// Built before the loop, so that the actors it speaks to can be built before it
// too.
//
// A message makes the eventfd readable, and a run of messages costs one write.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ipc/base/check.h"
#include "ipc/base/fd.h"
#include "ipc/base/result.h"
#include "service/actor/inbox.h"

namespace headrace::service {

template <typename Message>
class LoopInbox final : public InboxWriter<Message>, private Wakeable {
 public:
  static Result<std::unique_ptr<LoopInbox>> Create() {
    UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!event) return SystemError("eventfd", errno);
    return std::unique_ptr<LoopInbox>(new LoopInbox(std::move(event)));
  }

  // Any thread.
  [[nodiscard]] bool Send(Message&& message) override { return inbox_.Send(std::move(message)); }

  // The loop's thread only: the eventfd to observe, and all messages so far.
  int event_fd() const { return event_.get(); }
  void PopAll(std::vector<Message>& taken) {
    std::uint64_t count = 0;
    const ssize_t size = ::read(event_.get(), &count, sizeof count);
    HR_CHECK(size == sizeof count || errno == EAGAIN, size, errno);
    signalled_.store(false);
    inbox_.PopAll(taken);
  }

 private:
  explicit LoopInbox(UniqueFd event) : event_(std::move(event)), inbox_(*this) {}

  void Wake() override {
    // seq_cst: pairs with PopAll, which takes the flag back before it looks into the inbox.
    if (signalled_.exchange(true)) return;
    const std::uint64_t one = 1;
    const ssize_t written = ::write(event_.get(), &one, sizeof one);
    HR_CHECK(written == sizeof one, written, errno);  // else the actor sleeps on
  }

  UniqueFd event_;
  std::atomic<bool> signalled_ = false;
  Inbox<Message> inbox_;
};

}  // namespace headrace::service
