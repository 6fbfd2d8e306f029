#include "service/actor/sleeper.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>

namespace headrace::service {
namespace {

// Shorter sleeps are of somebody who looks at a pace: there a millisecond is long.
constexpr TimeNs kFineSleep = kMillisecond;

}  // namespace

Result<std::unique_ptr<Sleeper>> Sleeper::Create() {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return SystemError("epoll_create1", errno);
  UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) return SystemError("eventfd", errno);
  const int event_fd = event.get();
  std::unique_ptr<Sleeper> sleeper(new Sleeper(std::move(epoll), std::move(event)));
  if (Status status = sleeper->Watch(event_fd); !status) return status.error();
  return sleeper;
}

void Sleeper::Wake() {
  // seq_cst: pairs with Announce; the sender has published its message before.
  if (!sleeping_.load() || !sleeping_.exchange(false)) return;
  Interrupt();
}

void Sleeper::Interrupt() {
  const std::uint64_t one = 1;
  // A full counter fails with EAGAIN, and then the edge that wakes is already there.
  [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof one);
}

Status Sleeper::Watch(int fd) { return Add(fd, EPOLLIN | EPOLLET); }

Status Sleeper::WatchLevel(int fd) { return Add(fd, EPOLLIN); }

Status Sleeper::Add(int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return SystemError("epoll_ctl add", errno);
  }
  return {};
}

void Sleeper::Unwatch(int fd) { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

void Sleeper::Announce() { sleeping_.store(true); }

void Sleeper::Retract() { sleeping_.store(false, std::memory_order_relaxed); }

void Sleeper::Sleep(TimeNs timeout_ns) {
  std::array<epoll_event, 16> events;
  int timeout_ms = -1;
  if (timeout_ns > 0 && timeout_ns < kFineSleep) {
    // epoll counts in milliseconds: the set is waited for as a descriptor, and then asked.
    pollfd set{.fd = epoll_.get(), .events = POLLIN, .revents = 0};
    const timespec timeout{.tv_sec = 0, .tv_nsec = timeout_ns};
    ::ppoll(&set, 1, &timeout, nullptr);
    timeout_ms = 0;
  } else if (timeout_ns != kNever) {
    // Rounded up: waking before the deadline would mean going round once more for nothing.
    const TimeNs wanted = timeout_ns <= 0 ? 0 : (timeout_ns + kMillisecond - 1) / kMillisecond;
    timeout_ms = wanted > INT_MAX ? INT_MAX : static_cast<int>(wanted);
  }
  ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
}

}  // namespace headrace::service
