// The door into control. Built before control, so that the actors control speaks to can be built
// before it too.
//
// Control's thread sleeps in its event loop; a message makes the eventfd readable, and a run of
// messages costs one write.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "ipc/base/fd.h"
#include "ipc/base/result.h"
#include "service/actor/inbox.h"
#include "service/actor/messages.h"

namespace headrace::service {

class ControlInbox final : public Door<ControlMessage>, private Wakeable {
 public:
  static Result<std::unique_ptr<ControlInbox>> Create();

  // Any thread.
  [[nodiscard]] bool Send(ControlMessage message) override;

  // Control's thread only: the eventfd to observe, and all messages so far.
  int event_fd() const { return event_.get(); }
  void TakeAll(std::vector<ControlMessage>& taken);

 private:
  explicit ControlInbox(UniqueFd event) : event_(std::move(event)), inbox_(*this) {}
  void Wake() override;

  UniqueFd event_;
  std::atomic<bool> signalled_ = false;
  Inbox<ControlMessage> inbox_;
};

}  // namespace headrace::service
