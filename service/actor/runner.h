// The thread of a set of actors: works while there is work, then spins for a short time, then
// sleeps.
#pragma once

#include <stop_token>
#include <string>
#include <thread>

#include "service/actor/actor_set.h"
#include "service/actor/sleeper.h"

namespace headrace::service {

class Runner {
 public:
  // Starts a thread called `name`. The actors and their sleeper outlive the runner. After the last
  // work the thread looks for new work for `spin_ns`, giving way to other threads, before it
  // sleeps.
  Runner(const std::string& name, ActorSet& actors, Sleeper& sleeper, TimeNs spin_ns);
  // Stops after the work at hand, and joins.
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

 private:
  void Loop(const std::stop_token& stop);

  ActorSet& actors_;
  Sleeper& sleeper_;
  TimeNs spin_ns_;
  std::jthread thread_;
};

}  // namespace headrace::service
