// The composition root: what the service consists of, built in this order and torn down in reverse.
#pragma once

#include <memory>

#include "ipc/base/result.h"
#include "service/config/config.h"
#include "service/log/log_sink.h"
#include "service/rpc/control_options.h"

namespace spdlog {
class logger;
}

namespace headrace::service {

class Daemon {
 public:
  // Claims the socket, creates the board, builds every actor and listens. On the main thread, with
  // SIGTERM and SIGINT blocked. `sink` is where `log` goes; it outlives the daemon, whose board
  // counts what it drops. Errors name what could not be had and what to do.
  static Result<std::unique_ptr<Daemon>> Create(const Config& config,
                                                std::shared_ptr<spdlog::logger> log, LogSink& sink);
  // Everything that Create would refuse, found by the same functions, with nothing left behind.
  // While a service holds the socket, its ports may be taken. Before the first event loop of the
  // process.
  static Status Check(const Config& config, std::shared_ptr<spdlog::logger> log);
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Starts the actors' threads and serves until asked to stop. Returns the exit code.
  int Run(Supervisor supervisor = {});

 private:
  struct Parts;
  explicit Daemon(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace headrace::service
