// Drives a set of actors on one thread: work while there is some, then a short spin, then sleep.
#pragma once

#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "service/actor/actor.h"
#include "service/actor/sleeper.h"

namespace headrace::service {

class Runner {
 public:
  // Starts a thread called `name`. Actors and sleeper outlive the runner. After the last work the
  // thread looks for new work for `spin_ns`, giving way to other threads, before it sleeps.
  Runner(std::string name, std::vector<Actor*> actors, Sleeper& sleeper, TimeNs spin_ns);
  // Stops after the work at hand, and joins.
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

 private:
  void Loop(const std::stop_token& stop);
  bool WorkOnce();
  void SleepOnce(const std::stop_token& stop);

  std::vector<Actor*> actors_;
  Sleeper& sleeper_;
  TimeNs spin_ns_;
  std::jthread thread_;
};

}  // namespace headrace::service
