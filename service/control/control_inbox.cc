#include "service/control/control_inbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace headrace::service {

Result<std::unique_ptr<ControlInbox>> ControlInbox::Create() {
  UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) return SystemError("eventfd", errno);
  return std::unique_ptr<ControlInbox>(new ControlInbox(std::move(event)));
}

bool ControlInbox::Send(ControlMessage message) { return inbox_.Send(std::move(message)); }

void ControlInbox::Wake() {
  // seq_cst: pairs with TakeAll, which takes the flag back before it looks into the inbox.
  if (signalled_.exchange(true)) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof one);
}

void ControlInbox::TakeAll(std::vector<ControlMessage>& taken) {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t size = ::read(event_.get(), &count, sizeof count);
  signalled_.store(false);
  inbox_.TakeAll(taken);
}

}  // namespace headrace::service
