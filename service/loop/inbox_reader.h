// Reads the inbox of an actor that lives in a kj event loop.
#pragma once

#include <kj/async-io.h>
#include <kj/async-unix.h>
#include <kj/async.h>
#include <kj/timer.h>

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "ipc/base/check.h"
#include "service/loop/loop_inbox.h"

namespace headrace::service {

// Hands the messages of one inbox to `handle`, a bounded number of them before timers and sockets
// have their turn. The loop's thread only.
template <typename Message>
class InboxReader {
 public:
  static constexpr std::size_t kMessagesPerTurn = 64;

  // All outlive this.
  InboxReader(LoopInbox<Message>& inbox, kj::AsyncIoContext& io,
              std::function<void(Message&)> handle)
      : inbox_(inbox),
        timer_(io.provider->getTimer()),
        observer_(io.unixEventPort, inbox.event_fd(), kj::UnixEventPort::FdObserver::OBSERVE_READ),
        handle_(std::move(handle)) {}

  // Reads for as long as the promise is kept; resolves only by failing.
  kj::Promise<void> Read() {
    for (std::size_t handled = 0; handled < kMessagesPerTurn; ++handled) {
      HR_CHECK(next_ <= messages_.size(), next_, messages_.size());
      if (next_ == messages_.size()) {
        next_ = 0;
        inbox_.PopAll(messages_);
        // Nothing was polled since PopAll, so a message that came after it is still to be noticed.
        if (messages_.empty()) {
          return observer_.whenBecomesReadable().then([this] { return Read(); });
        }
      }
      handle_(messages_[next_++]);
    }
    return timer_.afterDelay(0 * kj::NANOSECONDS).then([this] { return Read(); });
  }

 private:
  LoopInbox<Message>& inbox_;
  kj::Timer& timer_;
  kj::UnixEventPort::FdObserver observer_;
  std::function<void(Message&)> handle_;
  std::vector<Message> messages_;
  std::size_t next_ = 0;  // of messages_, to be handled
};

}  // namespace headrace::service
