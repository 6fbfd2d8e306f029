// Where a thread of actors sleeps: an epoll set with its own eventfd and the clients' doorbells.
//
// Wake() may be called from any thread and costs a system call only while the thread sleeps.
// Everything else belongs to whoever holds the lock of the thread's actors (actor_set.h), but for
// Sleep, which is the thread's own.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "service/actor/inbox.h"

namespace headrace::service {

// Who is given the doorbells to listen to; dispatch holds this, tests give it a list.
class Doorbells {
 public:
  virtual ~Doorbells() = default;
  virtual Status Watch(int fd) = 0;
  virtual void Unwatch(int fd) = 0;
};

class Sleeper final : public Wakeable, public Doorbells {
 public:
  static Result<std::unique_ptr<Sleeper>> Create();

  void Wake() override;
  // The same for what no actor is told: it also counts while another thread works for this one, and
  // is remembered until the next Sleep. Any thread.
  void Interrupt();
  // Edge-triggered, so a doorbell is never read and a client cannot block the service with it.
  Status Watch(int fd) override;
  void Unwatch(int fd) override;
  // Level-triggered, for a descriptor that its owner reads until it is no longer readable.
  Status WatchLevel(int fd);

  // From Announce to Retract, Wake() makes the next Sleep return at once.
  void Announce();
  void Retract();
  // Sleeps until woken or `timeout_ns` has passed (kNever: no limit).
  void Sleep(TimeNs timeout_ns);

 private:
  Sleeper(UniqueFd epoll, UniqueFd event) : epoll_(std::move(epoll)), event_(std::move(event)) {}

  Status Add(int fd, std::uint32_t events);

  UniqueFd epoll_;
  UniqueFd event_;
  std::atomic<bool> sleeping_ = false;
};

}  // namespace headrace::service
