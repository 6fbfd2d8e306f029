#include "ipc/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace headrace::ipc {
namespace {

// Not the private form: the word lies in memory of two processes.
long Futex(const std::atomic<std::uint32_t>& word, int operation, std::uint32_t value,
           const timespec* timeout) {
  return ::syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0);
}

}  // namespace

void FutexWait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, TimeNs timeout_ns) {
  if (timeout_ns <= 0) return;
  const timespec timeout{static_cast<std::time_t>(timeout_ns / kSecond),
                         static_cast<long>(timeout_ns % kSecond)};
  Futex(word, FUTEX_WAIT, expected, timeout_ns == kNever ? nullptr : &timeout);
}

void FutexWakeAll(const std::atomic<std::uint32_t>& word) {
  Futex(word, FUTEX_WAKE, INT_MAX, nullptr);
}

}  // namespace headrace::ipc
