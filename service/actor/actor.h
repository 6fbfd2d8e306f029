// An actor: a name, private state, an inbox, and bounded work that never blocks.
//
// A Runner drives one or more actors on one thread; a test drives them by hand with any clock.
#pragma once

#include <string_view>

#include "ipc/base/clock.h"

namespace headrace::service {

class Actor {
 public:
  virtual ~Actor() = default;
  virtual std::string_view name() const = 0;

  // Does what is there to do, at most about 100 us of it. Returns whether it did anything.
  virtual bool DoWork(TimeNs now) = 0;

  // The same on the thread of another set (actor_set.h), which must not be held up: leaves what
  // takes longer to the next DoWork. PrepareToSleep then returns false.
  virtual bool DoShortWork(TimeNs now) { return DoWork(now); }

  // Called before the thread sleeps: arranges to be woken, and returns false when work has come
  // in the meantime, i.e. when the thread must not sleep.
  virtual bool PrepareToSleep() = 0;
  // Called after it, whether the thread slept or not.
  virtual void Awake() = 0;

  // When DoWork must be called even if nothing wakes the thread; kNever while nothing is timed.
  virtual TimeNs NextDeadline() const = 0;
};

}  // namespace headrace::service
