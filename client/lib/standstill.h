// Decides from the age of the oldest open operation when to ping the service and when to give it
// up. A service that is stopped (SIGSTOP, a debugger, a frozen container) ends no operation, and
// its socket stays open. Pure; one thread.
//
// A running service ends an operation within the session's timeout, unless the job is paused. So an
// operation that is open longer is a reason to ping, and only silence is a reason to give up. Time
// in which nobody checked does not count, because then this process was stopped.
#pragma once

#include <cstdint>

#include "ipc/base/clock.h"

namespace headrace::client {

// How long a service may take to answer beyond what is due: a quarter of it, but 1 to 10 s.
TimeNs AnswerMargin(TimeNs due_ns);

class StandstillDetector {
 public:
  // What is to be done after a look.
  enum class Step { kNone, kAsk, kGiveUp };

  explicit StandstillDetector(TimeNs timeout_ns);

  // How often Check is to be called.
  TimeNs interval_ns() const { return interval_ns_; }
  // `oldest` is the number of the oldest open operation; 0: none is open.
  Step Check(TimeNs now, std::uint64_t oldest);
  // The question that kAsk stands for has come back; without an answer it is asked again.
  void OnAnswer(bool lives);
  // For how long the operation has been seen open, since the service last answered.
  TimeNs open_ns() const { return open_ns_; }

 private:
  const TimeNs timeout_ns_;
  const TimeNs interval_ns_;
  std::uint64_t oldest_ = 0;
  TimeNs looked_ns_ = 0;
  TimeNs open_ns_ = 0;
  bool asking_ = false;
};

}  // namespace headrace::client
